"""What outlives a crash of a simulated job: its snapshots, its input, its targets, and the service that it calls."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from typing import Any

from snapshots import SnapshotStore
from tests.async_op.job.simulation.scenario import FIRST_JOB, Row, Scenario
from tests.async_op.job.virtual_job_loop import VirtualJobLoop
from tests.simulation.payments import Payments


class Fault(Exception):
    """The storage has failed, or the process was killed."""


class World:
    """What outlives a crash of one job.

    Attributes
    ----------
    input : dict
        The rows of each partition as they are now; see `replace`.
    epochs, letters : dict
        What the sink and the sink of dead letters have, by epoch.
    refused : dict
        The outputs that the sink has refused, by what names them.
    crashes, failures, repairs : int
        How many runs have ended by a crash, by an element, and by what had to be repaired outside of the job.
    lost_marks : int
        How many delivered epochs were not marked, so that the next run delivers them again.
    """

    def __init__(self, scenario: Scenario, payments: Payments, processes: int = 1) -> None:
        self.scenario = scenario
        self.processes = processes
        self.may_lose_a_child = False
        self.draw_children = scenario.random("children")
        self.payments = payments
        self.draw = scenario.random("world")
        self.job_id = scenario.job if scenario.random("ids").random() < 0.5 else "job"
        # Two jobs differ in their ids, or in their folders.
        folder = "" if scenario.job == self.job_id or scenario.job == FIRST_JOB else f"-{scenario.job}"
        self.folder = f"memory://job-{scenario.seed}{folder}"
        self.store = SnapshotStore(self.folder, self.job_id)
        self.input = dict(scenario.input)
        self.replacements = 0
        self.epochs: dict[int, list[Any]] = {}
        self.letters: dict[int, list[Any]] = {}
        self.writes: Counter[int] = Counter()
        self.refused: dict[tuple[Any, ...], Any] = {}
        self.is_mended = self.has_refused = False
        self.crashes = self.failures = self.repairs = 0
        self.is_fragile = False
        self.lost_marks = 0
        self.draw_failures = scenario.random("calls that fail")
        self.loop = VirtualJobLoop(self._storage_seconds)
        self.trace: list[tuple[Any, ...]] = []

    def _storage_seconds(self) -> float:
        return self.draw.choice([0.0, 0.05, 1.0]) * self.draw.random()

    def note(self, *event: Any) -> None:
        """Add what has happened to the trace."""
        self.trace.append((self.loop.time(), *event))

    def check(self, condition: object, problem: str) -> None:
        if not condition:
            raise AssertionError(f"seed {self.scenario.seed}, {self.scenario.job}: {problem}")

    def pay(self, key: str, *names: Any) -> Hashable:
        """Have the service pay for an element; returns for what it has paid."""
        paid: Any = self.payments.pay(key, (self.scenario.job, *names))
        return paid[2:]

    @property
    def restarts(self) -> int:
        """How many runs have ended without a cut."""
        return self.crashes + self.repairs

    # What goes wrong.

    def has_poison(self) -> bool:
        """Whether a call fails for good, and the job with it."""
        return self.failures < self.scenario.failures and self.draw_failures.random() < 0.1

    def lifetime(self) -> int | None:
        """Return after how many frames the next child dies; 0 if it cannot be started, None for never."""
        if not self.may_lose_a_child or self.draw_children.random() < 0.5:
            return None
        self.may_lose_a_child = False  # a run loses one at most, because it may restart
        return self.draw_children.choice([0, self.draw_children.randint(1, 30), self.draw_children.randint(1, 400)])

    def crash_point(self, place: str) -> None:
        """Be killed here, perhaps; a run is killed once at most."""
        if self.is_fragile and self.draw.random() < 0.3:
            self.is_fragile = False
            self.note("killed", place)
            raise Fault(place)

    def replace(self, partition: str) -> None:
        """Put other rows in the place of a partition, or cut it off."""
        rows = self.input[partition]
        if self.draw.random() < 0.3:
            self.input[partition] = []
        else:
            others: list[Row] = [(f"other {name}", place, key) for name, place, key in rows]
            self.input[partition] = [*others, *others] if self.draw.random() < 0.5 else others
        self.replacements += 1
        self.note("replaced", partition)

    @property
    def is_replaced(self) -> bool:
        """Whether a part of the input is not what the job has read."""
        return self.input != self.scenario.input

    def put_back(self) -> None:
        """Have the input as it was."""
        self.input = dict(self.scenario.input)

    def refuses(self, output: tuple[Any, ...]) -> bool:
        """Whether the sink has no place for an output now."""
        return not self.is_mended and self.scenario.is_refused(output)

    def mend(self) -> None:
        """Let the sink have a place for everything, if that is why the job does not get on, or by chance."""
        by_chance = self.scenario.is_mended_late and self.draw.random() < 0.5
        self.is_mended |= self.has_refused and (self.scenario.fails_with_refused or by_chance)
