"""What follows from a seed: the input, the steps, the sink, and what goes wrong."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any, Literal

GROUPS = 8
KEYS = 5
HALF_A_PAIR = "\ud83d"
"""Half of a surrogate pair, which no snapshot and no key can hold."""

Row = tuple[str, int, int]
"""The partition of an element, its place in it, and its key."""

Identity = tuple[Any, ...]
"""What is paid for: an element of a step of a job, or a timer."""

FIRST_JOB, SECOND_JOB = "monday", "tuesday"
SECOND_JOB_SHARE = 0.25
"""In so many seeds a second job reads the same input, and calls the same service."""


class Scenario:
    """What follows from a seed for one job.

    Parameters
    ----------
    seed : int
        Decides everything.
    job : str
        The name of the job among those of the seed. All of them have the same input.
    """

    def __init__(self, seed: int, job: str = FIRST_JOB) -> None:
        self.seed = seed
        self.job = job
        draw = self.random("scenario")
        self.keyed_first = draw.random() < 0.5
        self.first_mode = draw.choice(["ordered", "key_ordered"] if self.keyed_first else ["ordered", "unordered"])
        self.second_mode = draw.choice(["key_ordered", "ordered", "unordered"])
        self.capacities = [draw.choice([1, 3, 20]) for _ in range(2)]
        self.crashes = draw.choice([0, 0, 1, 3])
        self.has_faults = self.crashes > 0 and draw.random() < 0.5
        self.actions = draw.randrange(6)
        self.failures = self.random("failures").choice([0, 0, 1, 2])
        self.input: dict[str, list[Row]] = {}
        for number in range(draw.randint(1, 3)):
            keys = [key for key in range(KEYS) if key % 3 == number] or [number]
            self.input[f"p{number}"] = [
                (f"p{number}", place, draw.choice(keys)) for place in range(draw.choice([0, 5, 40]))
            ]
        if job != FIRST_JOB:
            self.input = Scenario(seed).input
        self._draw_edges(self.random("edges"))

    def _draw_edges(self, draw: random.Random) -> None:
        """Decide what comes in, what goes out, and what names the elements in between."""
        self.source: Literal["log", "list", "files"] = draw.choice(["log", "log", "list", "files"])
        self.replacements = draw.choice([0, 0, 1, 2])
        self.namespace = draw.choice([None, None, f"seed-{self.seed}-{self.job}"])
        self.has_timers = draw.random() < 0.3
        self.on_error: Literal["fail", "skip", "dead_letter"] = draw.choice(["fail", "skip", "dead_letter"])
        self.refused_share = draw.choice([0.0, 0.1, 0.5])
        self.finds_all_refused = draw.random() < 0.5
        self.names_refused = draw.random() < 0.9
        self.is_mended_late = self.on_error == "dead_letter" and draw.random() < 0.5
        self.is_fragile = self.crashes > 0 and draw.random() < 0.7
        batches = self.random("batches")
        self.batched = [batches.random() < 0.3 for _ in range(2)]
        self.restarts = self.random("restarts").choice([0, 0, 1, 3])

    def random(self, *names: object) -> random.Random:
        return random.Random(f"{self.seed} {names}" if self.job == FIRST_JOB else f"{self.seed} {self.job} {names}")

    # What comes in.

    def rows(self) -> Iterator[Row]:
        """Return the whole input."""
        return (row for rows in self.input.values() for row in rows)

    def is_bad(self, row: Row) -> bool:
        """Whether the first step cannot do anything with an element."""
        return row[1] % 7 == 6

    def badness(self, row: Row) -> str:
        """What is wrong with a bad element: its call, its output, its key, or already its record."""
        kind = ("call", "output", "key", "record")[row[1] // 7 % 4]
        return "call" if kind == "record" and self.source == "list" else kind

    def is_record(self, row: Row) -> bool:
        """Whether an element can be decoded."""
        return not (self.is_bad(row) and self.badness(row) == "record")

    def has_bad_key(self, row: Row) -> bool:
        """Whether the first step has no key for an element."""
        return self.keyed_first and self.is_bad(row) and self.badness(row) == "key"

    def key_of(self, value: Any) -> Any:
        """Return the key of a value; for some bad values a text that no key can be."""
        row = as_row(value)
        return HALF_A_PAIR if self.has_bad_key(row) else row[2]

    def outputs_of(self, row: Row) -> list[tuple[str, int, int, int]]:
        """What the first step makes of an element: none, one or two outputs of its key."""
        return [(*row, number) for number in range((row[1] + row[2]) % 3)]

    def time_of(self, row: Row, number: int = 0) -> int:
        """Return when the timers of an element fire; no other element of its step has this time."""
        return 1000 * row[1] + 10 * int(row[0][1:]) + number + 1

    # What must come out.

    def outputs(self) -> list[tuple[str, int, int]]:
        """What names the outputs of the job: a partition, a place and a number."""
        good = [row for row in self.rows() if not self.is_bad(row)]
        return [(row[0], row[1], number) for row in good for number in range(len(self.outputs_of(row)))]

    def is_refused(self, output: tuple[str, int, int]) -> bool:
        """Whether the sink has no place for an output."""
        return self.random("refused", output).random() < self.refused_share

    @property
    def fails_with_refused(self) -> bool:
        """Whether an output that the sink refuses ends the job."""
        return self.on_error == "fail" or not self.names_refused

    def payments(self) -> Iterator[Identity]:
        """What must have been paid for in the end, once."""
        for row in self.rows():
            if self.is_record(row) and not self.has_bad_key(row):
                yield (self.job, "first", row[0], row[1])
                if self.has_timers and self.keyed_first and not self.is_bad(row):
                    yield from self._timers("first", row[2], self.time_of(row))
        keys = {(row[0], row[1]): row for row in self.rows()}
        for partition, place, number in self.outputs():
            yield (self.job, "second", partition, place, number)
            if self.has_timers:
                row = keys[partition, place]
                yield from self._timers("second", row[2], self.time_of(row, number))

    def _timers(self, step: str, key: int, timestamp: int) -> Iterator[Identity]:
        for kind in ("event", "processing"):
            yield (self.job, step, "timer", kind, key, timestamp)


def as_row(value: Any) -> Any:
    """Return the row of an element, which the lines of a file have in a dict."""
    return tuple(value["row"] if isinstance(value, dict) else value)


def scenarios_of(seed: int) -> list[Scenario]:
    """Return the jobs of a seed, one after the other: mostly one."""
    first = Scenario(seed)
    has_second = first.random("jobs").random() < SECOND_JOB_SHARE
    return [first, *([Scenario(seed, SECOND_JOB)] if has_second else [])]
