"""The command line as tests run it, in this process, and a snapshot to run it on."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from snapshots.cli import app


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
