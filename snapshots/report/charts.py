"""The geometry of the charts: the numbers from 0 to 100 from which the template draws."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from keygroups.ranges import KeyGroupRange, range_of
from keygroups.rescale import plan_rescale
from snapshots.inspection import KeyGroupSizes

CELLS_MAX = 1024
"""With more key groups than this, a cell stands for several of them."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A square of a heat map: its position, the intensity of its colour (0 to 1), and its key groups."""

    x: int
    y: int
    strength: float
    key_groups: KeyGroupRange
    amount: int


@dataclass(frozen=True, slots=True)
class HeatMap:
    """Amounts by key group as squares; squares in the same row are neighbours."""

    columns: int
    rows: int
    cells: tuple[Cell, ...]
    largest: int

    @classmethod
    def of(cls, amounts: Sequence[int]) -> HeatMap:
        """Arrange amounts, one for each key group."""
        step = -(-len(amounts) // CELLS_MAX)
        runs = [KeyGroupRange(a, min(a + step, len(amounts)) - 1) for a in range(0, len(amounts), step)]
        sums = [sum(amounts[run.start : run.end + 1]) for run in runs]
        columns = 32 if len(runs) <= 256 else 64
        largest = max(sums)
        cells = tuple(
            Cell(number % columns, number // columns, amount / largest if largest else 0.0, run, amount)
            for number, (run, amount) in enumerate(zip(runs, sums, strict=True))
        )
        return cls(columns, -(-len(runs) // columns), cells, largest)


@dataclass(frozen=True, slots=True)
class Share:
    """A subtask's section of a bar that shows all key groups."""

    subtask: int
    key_groups: KeyGroupRange
    width: float
    rows: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Flow:
    """Key groups that move from one subtask to another, as a polygon between two bars, in an area of 100 by 100."""

    source: int
    target: int
    key_groups: KeyGroupRange
    start: float
    end: float
    bytes: int

    @property
    def stays(self) -> bool:
        """Whether the key groups keep their owner."""
        return self.source == self.target


@dataclass(frozen=True, slots=True)
class Ownership:
    """The owners of the key groups at one parallelism.

    Attributes
    ----------
    shares : tuple of Share
        The section of each subtask.
    skew : float
        The bytes of the heaviest subtask divided by the average.
    """

    shares: tuple[Share, ...]
    skew: float

    @classmethod
    def of(cls, sizes: KeyGroupSizes, parallelism: int) -> Ownership:
        """Divide the key groups among the subtasks."""
        count = len(sizes.bytes)
        shares = []
        for subtask in range(parallelism):
            owned = range_of(subtask, parallelism, count)
            rows, delta_rows, bytes_ = sizes.within(owned)
            shares.append(Share(subtask, owned, 100 * len(owned) / count, rows + delta_rows, bytes_))
        total = sum(share.bytes for share in shares)
        largest = max(share.bytes for share in shares)
        return cls(tuple(shares), largest * parallelism / total if total else 1.0)


@dataclass(frozen=True, slots=True)
class Rescale:
    """A planned change of the parallelism."""

    before: Ownership
    after: Ownership
    flows: tuple[Flow, ...]

    @classmethod
    def of(cls, sizes: KeyGroupSizes, old_parallelism: int, new_parallelism: int) -> Rescale:
        """Plan the rescale and lay out its chart."""
        count = len(sizes.bytes)
        flows = tuple(
            Flow(
                move.source_subtask,
                move.target_subtask,
                move.key_groups,
                100 * move.key_groups.start / count,
                100 * (move.key_groups.end + 1) / count,
                sizes.within(move.key_groups)[2],
            )
            for move in plan_rescale(old_parallelism, new_parallelism, count).moves
        )
        return cls(Ownership.of(sizes, old_parallelism), Ownership.of(sizes, new_parallelism), flows)

    @property
    def bytes_that_stay(self) -> int:
        """The bytes whose subtask number stays the same."""
        return sum(flow.bytes for flow in self.flows if flow.stays)

    @property
    def bytes_that_move(self) -> int:
        """The bytes that another subtask will read; no file is copied."""
        return sum(flow.bytes for flow in self.flows if not flow.stays)
