"""``keygroups plan``: shows what a rescale would move."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from keygroups.ranges import subtask_of
from keygroups.rescale import Move, RescalePlan, plan_rescale
from snapshots.cli import output
from snapshots.cli.options import AsJson, Parallelism, StorageOptions, Uri, open_store
from snapshots.cli.output import Table, output_for
from snapshots.filesystem import redacted
from snapshots.format.manifest import Manifest
from snapshots.inspection import size_of

_DRAWING_WIDTH_MAX = 64
_BESIDE_DRAWING = len("│ before │  │")
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
"""The characters for subtasks by number; they repeat after the 36th."""


def plan(uri: Uri, parallelism: Parallelism, as_json: AsJson = False, storage_option: StorageOptions = None) -> None:
    """Show which key groups a rescale would move, and change nothing."""
    shown = output_for(as_json=as_json)
    shown.show(PlanReport.of(open_store(uri, storage_option).load().manifest, parallelism))
    command = f"keygroups repartition {redacted(uri)} --parallelism {parallelism}"
    shown.note(f"nothing was changed; to commit it, by metadata alone: {command}")


def drawing(rescale: RescalePlan, columns: int) -> Table:
    """Draw the owners of the key groups before and after, one below the other, and mark what moves.

    Parameters
    ----------
    rescale : RescalePlan
        What to draw.
    columns : int
        The width of the terminal, in which each line fits.
    """
    count = rescale.max_parallelism
    width = max(1, min(count, _DRAWING_WIDTH_MAX, columns - _BESIDE_DRAWING))
    places = [place * count // width for place in range(width)]
    owners = [
        [subtask_of(place, parallelism, count) for place in places]
        for parallelism in (rescale.old_parallelism, rescale.new_parallelism)
    ]
    moved = "".join("^" if old != new else "." for old, new in zip(*owners, strict=True))
    before, after = ("".join(_DIGITS[owner % len(_DIGITS)] for owner in side) for side in owners)
    rows = (("before", before), ("after", after), ("moves", moved))
    return Table(_legend(rescale, count / width), (), rows)


def _legend(rescale: RescalePlan, each: float) -> str:
    """Return the title of a drawing, which explains its characters."""
    subtasks = max(rescale.old_parallelism, rescale.new_parallelism)
    digits = "; a is subtask 10, b 11 and so on" if subtasks > 10 else ""
    if subtasks > len(_DIGITS):
        digits += f", and after z, subtask {len(_DIGITS)} is 0 again"
    number = "one" if each == 1 else f"about {each:.0f}"
    return (
        f"owners of the key groups 0 to {rescale.max_parallelism - 1}; "
        f"a character is {number}: . stays, ^ moves{digits}"
    )


@dataclass(frozen=True, slots=True)
class PricedMove:
    """A move, with the approximate bytes of its key groups."""

    move: Move
    bytes: int

    @property
    def stays(self) -> bool:
        """Whether the key groups keep their owner."""
        return self.move.source_subtask == self.move.target_subtask


@dataclass(frozen=True, slots=True)
class PlanReport:
    """The report of ``keygroups plan``."""

    version: int
    rescale: RescalePlan
    moves: tuple[PricedMove, ...]

    @classmethod
    def of(cls, manifest: Manifest, parallelism: int) -> PlanReport:
        """Compute the moves from a snapshot's parallelism to another, with their sizes."""
        rescale = plan_rescale(manifest.parallelism, parallelism, manifest.max_parallelism)
        files = [file for file in manifest.files if file.kind != "output"]
        moves = tuple(PricedMove(move, size_of(files, move.key_groups).bytes) for move in rescale.moves)
        return cls(manifest.version, rescale, moves)

    def to_json(self) -> dict[str, Any]:
        """Return the report as data for JSON, in a stable form."""
        return {
            "version": self.version,
            "old_parallelism": self.rescale.old_parallelism,
            "new_parallelism": self.rescale.new_parallelism,
            "max_parallelism": self.rescale.max_parallelism,
            "moves": [
                {
                    "source_subtask": priced.move.source_subtask,
                    "target_subtask": priced.move.target_subtask,
                    "first": priced.move.key_groups.start,
                    "last": priced.move.key_groups.end,
                    "approximate_bytes": priced.bytes,
                }
                for priced in self.moves
            ],
            "staying": self._total(lambda priced: priced.stays),
            "moving": self._total(lambda priced: not priced.stays),
        }

    def tables(self) -> Iterable[Table]:
        """Return the report as tables for people."""
        yield drawing(self.rescale, output.new_console().width)
        yield Table(
            f"from parallelism {self.rescale.old_parallelism} to {self.rescale.new_parallelism} "
            f"(snapshot {self.version}, {self.rescale.max_parallelism} key groups)",
            ("from subtask", "to subtask", "first", "last", "key groups", "~bytes", ""),
            tuple(
                (
                    priced.move.source_subtask,
                    priced.move.target_subtask,
                    priced.move.key_groups.start,
                    priced.move.key_groups.end,
                    len(priced.move.key_groups),
                    priced.bytes,
                    "stays" if priced.stays else "moves",
                )
                for priced in self.moves
            ),
        )
        totals = {
            "stay": self._total(lambda priced: priced.stays),
            "move": self._total(lambda priced: not priced.stays),
        }
        yield Table(
            "in all",
            ("", "key groups", "~bytes"),
            tuple((word, total["key_groups"], total["approximate_bytes"]) for word, total in totals.items()),
        )

    def _total(self, is_counted: Callable[[PricedMove], bool]) -> dict[str, int]:
        counted = [priced for priced in self.moves if is_counted(priced)]
        return {
            "key_groups": sum(len(priced.move.key_groups) for priced in counted),
            "approximate_bytes": sum(priced.bytes for priced in counted),
        }
