"""The work that all systems do, and the outputs that are right. Imports only the standard library."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TypeAlias, TypeVar

CONCURRENCY = 1000
CALL_SECONDS = 0.02
KEYS = 10_000
RESTART_ROWS = 1000
STATE_CHARACTERS = 100

_MASK = 2**64 - 1
_SCALE = 1_000_000
_SelfCase = TypeVar("_SelfCase", bound="Case")


@dataclass(frozen=True)
class Digest:
    """What a multiset of integers comes to: how many, their sum and the sum of their squares, modulo 2^64."""

    count: int
    total: int
    squares: int

    @classmethod
    def of(cls, values: Iterable[int]) -> Digest:
        """Return the digest of the values."""
        count = total = squares = 0
        for value in values:
            count += 1
            total += value
            squares += value * value
        return cls(count, total & _MASK, squares & _MASK)


Outcome: TypeAlias = Digest | Iterable[int]


@dataclass(frozen=True)
class Case(ABC):
    """A kind of work and how much of it."""

    name: str
    rows: int

    @property
    @abstractmethod
    def title(self) -> str:
        """What is done, for the reader of the table."""

    @abstractmethod
    def outputs(self) -> Iterator[int]:
        """Yield the outputs that are right, as integers, in any order."""

    def with_rows(self: _SelfCase, rows: int) -> _SelfCase:
        """Return the same work with another number of rows."""
        return replace(self, rows=rows)

    def warm_up(self: _SelfCase) -> _SelfCase:
        """Return a tenth of the work."""
        return self.with_rows(max(1, self.rows // 10))


@dataclass(frozen=True)
class Enrichment(Case):
    """A slow call for each row."""

    @property
    def title(self) -> str:
        return f"Enrichment: {self.rows:,} rows, a call of {CALL_SECONDS * 1000:.0f} ms each, {CONCURRENCY:,} at once"

    def outputs(self) -> Iterator[int]:
        return map(answer, range(self.rows))


@dataclass(frozen=True)
class KeyedCount(Case):
    """For each event, how many there were with its key so far."""

    batch_rows: int

    @property
    def title(self) -> str:
        return f"Keyed count: {self.rows:,} events of {KEYS:,} keys, micro-batches of {self.batch_rows:,}"

    def outputs(self) -> Iterator[int]:
        return (counted(key_of(event), event // KEYS + 1) for event in range(self.rows))

    def batches(self) -> Iterator[list[int]]:
        """Yield the keys of each micro-batch."""
        for start in range(0, self.rows, self.batch_rows):
            yield [key_of(event) for event in range(start, min(start + self.batch_rows, self.rows))]

    def warm_up(self) -> KeyedCount:
        return self.with_rows(min(self.rows, max(self.batch_rows, self.rows // 10)))


@dataclass(frozen=True)
class Rescale(Case):
    """State of so many keys goes from two partitions to three, and a micro-batch of some of the keys follows."""

    @property
    def title(self) -> str:
        return (
            f"Rescale: {self.rows:,} keys with {STATE_CHARACTERS} characters each, stopped with 2 partitions, until "
            f"{self.restart_rows:,} rows are out of 3"
        )

    @property
    def restart_rows(self) -> int:
        """How many keys, from 0 on, the micro-batch before the rescale and the one after it have."""
        return min(self.rows, RESTART_ROWS)

    def outputs(self) -> Iterator[int]:
        return (counted(key, key) for key in range(self.restart_rows))


CASES = {
    case.name: case
    for case in (
        Enrichment("enrichment", 100_000),
        KeyedCount("count", 1_000_000, batch_rows=100_000),
        KeyedCount("small-batches", 30_000, batch_rows=1000),
        Rescale("rescale", 1_000_000),
    )
}


def answer(row: int) -> int:
    """Return what the called service says to a row."""
    return 2 * row + 1


def key_of(event: int) -> int:
    """Return the key of an event: each of them once in every `KEYS` events."""
    return event * 7919 % KEYS


def counted(key: int, count: int) -> int:
    """Return a key and a number as one integer."""
    return key * _SCALE + count


def state_of(key: int) -> str:
    """Return the state of a key before the rescale; its number ends it."""
    return f"{key:0>{STATE_CHARACTERS}}"
