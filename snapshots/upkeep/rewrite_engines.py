"""The engines of a rewrite: this process, or a Spark job."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from keygroups.arguments import check_choice
from keygroups.errors import ConfigError
from snapshots.format.files import FileWriter
from snapshots.format.manifest import DataFile
from snapshots.progress import Progress, progress_of
from snapshots.temporary_files import temporary_directory
from snapshots.upkeep.buckets import Buckets
from snapshots.upkeep.rewrite import Rewrite, StateRewrite

Engine = Literal["local", "spark"]


def engine_named(
    name: str, spark: Any = None, progress: Progress | None = None
) -> Callable[[Rewrite], tuple[DataFile, ...]]:
    """Return the function that carries out a rewrite.

    Raises
    ------
    ConfigError
        There is no such engine, or it needs a session.
    """
    check_choice("engine", name, get_args(Engine))
    tell = progress_of(progress)
    if name == "local":
        return lambda rewrite: rewrite_locally(rewrite, tell)
    if spark is None:
        raise ConfigError("spark", None, "the engine 'spark' runs as a job of a session: pass it")
    from snapshots.upkeep.spark import rewrite_with_spark

    return lambda rewrite: rewrite_with_spark(rewrite, spark)


def rewrite_locally(rewrite: Rewrite, tell: Progress) -> tuple[DataFile, ...]:
    """Rewrite everything in this process: memory is bounded, and local disk holds one state at a time.

    Raises
    ------
    SnapshotCorrupted
        A file is damaged.
    UnsupportedKey
        The new hash does not support a key.
    """
    meter = _Meter(tell, 2 * rewrite.bytes)
    with (
        temporary_directory("rewrite") as directory,
        FileWriter(rewrite.folder, uuid.uuid4().hex) as files,
    ):
        for number, state in enumerate(rewrite.states):
            _rewrite_state(state, files, directory / str(number), meter)
        for channel in rewrite.channels:
            rewrite.write_channel(files, channel)
            meter.add(2 * sum(file.bytes for file in channel))
        return files.stored()


@dataclass(slots=True)
class _Meter:
    tell: Progress
    total: int
    done: float = 0

    def add(self, bytes_: float) -> None:
        self.reach(self.done + bytes_)

    def reach(self, bytes_: float) -> None:
        self.done = bytes_
        self.tell(min(round(self.done), self.total), self.total)


def _rewrite_state(state: StateRewrite, files: FileWriter, directory: Path, meter: _Meter) -> None:
    directory.mkdir()
    before = meter.done
    bytes_ = sum({file.path: file.bytes for file in state.files}.values())
    rows_read = sum(file.rows for file in state.files)
    with Buckets(directory, state.target.key_groups) as buckets:
        for file in state.files:
            for table in state.rows(file):
                buckets.add(table)
                meter.add(bytes_ * table.num_rows / rows_read)
        share = bytes_ / max(buckets.bytes, 1)
        state.write(files, buckets.take(), state.target.key_groups, 0, lambda written: meter.add(written * share))
    meter.reach(before + 2 * bytes_)
