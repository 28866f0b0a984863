"""Snapshots and targets that are put back, in any order: each row is there once, or an error says what is wrong.

What a run refuses at its start, `explain` has told before, in the same words.
"""

from __future__ import annotations

import copy
import random
from pathlib import Path
from typing import Any

import pytest

from async_op.connectors import TargetAhead, TargetBehind
from async_op.connectors.sink import ShippedSink
from keygroups.safe_text import described
from tests.async_op.job.kit import new_job, put_back, same
from tests.quick import seeds_of_long_runs

STEPS = 12


class Broken(Exception):
    """The target fails, before or after it has taken an epoch."""


class Rows:
    """What the target has: the rows of each epoch, and the newest epoch."""

    def __init__(self) -> None:
        self.epochs: dict[int, list[Any]] = {}
        self.newest = -1

    def put_back(self, epoch: int) -> None:
        """Forget later epochs, as the page on disaster recovery says."""
        self.epochs = {number: rows for number, rows in self.epochs.items() if number <= epoch}
        self.newest = epoch


class Table(ShippedSink):
    """Takes each epoch once; fails now and then."""

    place_of_notes = ("table",)

    def __init__(self, rows: Rows, draw: random.Random) -> None:
        super().__init__(on_error="fail", retry=None, dead_letters=None)
        self.rows, self.draw = rows, draw

    def __repr__(self) -> str:
        return "Table()"

    def check_target(self) -> None:
        self.check_ahead("table", self.rows.newest, "put it back")
        self.check_behind("table", self.rows.newest)

    def write_rows(self, rows: Any, epoch: int) -> None:
        raise NotImplementedError

    def refused_rows(self, rows: Any) -> Any:
        raise NotImplementedError

    async def write(self, values: Any, epoch: int) -> None:
        self.check_target()
        if epoch <= self.rows.newest:
            return
        self._fail_perhaps()
        self.rows.epochs[epoch], self.rows.newest = list(values), epoch
        self._fail_perhaps()

    def _fail_perhaps(self) -> None:
        if self.draw.random() < 0.1:
            raise Broken


class Walk:
    """A job that is run again and again, with more rows, while its snapshots or its target are put back."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.draw = folder, random.Random(seed)
        self.rows, self.backup = Rows(), Rows()
        self.count = 0
        self.is_behind = False

    async def step(self) -> None:
        match self.draw.choice(("run", "run", "run", "snapshots", "save", "target")):
            case "run":
                self.count += self.draw.randint(0, 30)
                await self.run()
            case "snapshots":
                self.put_snapshots_back()
            case "save":
                self.backup = copy.deepcopy(self.rows)
            case "target":
                self.rows = copy.deepcopy(self.backup)

    async def run(self) -> None:
        sink = Table(self.rows, self.draw)
        job = new_job(list(range(self.count)), same, sink, snapshots=str(self.folder), snapshot_interval=0.005)
        told = [one.advice for one in (await job.explain()).findings if one.is_refusal]
        try:
            await job.run()
        except Broken:
            assert told == []
        except TargetAhead as error:
            assert told == [described(error)]
            self.rows.put_back(error.known)
        except TargetBehind as error:
            assert told == [described(error)]
            assert error.newest < error.written
            self.is_behind = True
        else:
            assert told == []
            assert sorted(row for rows in self.rows.epochs.values() for row in rows) == [*range(self.count)]

    def put_snapshots_back(self) -> None:
        manifests = self.folder / "job" / "manifests"
        versions = len(list(manifests.iterdir())) if manifests.exists() else 0
        if versions > 2:
            put_back(self.folder, self.draw.randint(1, min(4, versions - 1)))


@pytest.mark.thorough
async def test_each_row_is_there_once_or_an_error_says_what_is_wrong(
    tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    for seed in range(seeds_of_long_runs(pytestconfig, divisor=10, fewest=10)):
        walk = Walk(tmp_path / str(seed), seed)
        for _ in range(STEPS):
            await walk.step()
            if walk.is_behind:
                break  # rows are missing, which is what the job has said
