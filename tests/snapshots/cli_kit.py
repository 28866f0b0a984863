"""The command line as tests run it, in this process, and the parts of a snapshot to run it on."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest

from keygroups.descriptors import ValueState
from keygroups.ranges import range_of
from keygroups.state import MemoryBackend
from snapshots.cli import app
from snapshots.format.subtask import InFlightElement, SubtaskSnapshot


@dataclass(frozen=True)
class Answer:
    """What a command answered."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Cli = Callable[..., Answer]


def runner(capsys: pytest.CaptureFixture[str]) -> Cli:
    """Return what runs one command line in this process."""

    def run(*arguments: object) -> Answer:
        try:
            code = app.run([str(argument) for argument in arguments])
        except SystemExit as leaving:
            code = int(leaving.code or 0)
        captured = capsys.readouterr()
        return Answer(code, captured.out, captured.err)

    return run


G = 128
DELAY = ValueState("delay", pa.float64())
NOTES = ValueState("notes")


def subtask_snapshot(index: int, in_flight: tuple[InFlightElement, ...], watermark: int | None) -> SubtaskSnapshot:
    """One row per key group in the state `delay`, and one in `notes` for every second."""
    owned = range_of(index, 2, G)
    backend = MemoryBackend([DELAY, NOTES], owned)
    for key_group in owned:
        backend.tables["delay"].put(key_group, f"N{key_group}", float(key_group))
        if key_group % 2:
            backend.tables["notes"].put(key_group, f"N{key_group}", {"seen": key_group})
    return SubtaskSnapshot(
        subtask_index=index,
        parallelism=2,
        max_parallelism=G,
        hash="xxhash64",
        states=backend.cut(),
        in_flight=in_flight,
        watermark=watermark,
    )
