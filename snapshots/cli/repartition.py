"""``keygroups plan`` and ``keygroups repartition``: what a rescale would move, and the rescale itself."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any

import typer

from keygroups.ranges import subtask_of
from keygroups.rescale import Move, RescalePlan, plan_rescale
from snapshots.cli import output
from snapshots.cli.live import progress_bar
from snapshots.cli.options import AsJson, Hash, MaxParallelism, Parallelism, StorageOptions, Uri, open_store
from snapshots.cli.output import FlatReport, Table, output_for
from snapshots.filesystem import redacted
from snapshots.format.manifest import Manifest
from snapshots.inspection import size_of
from snapshots.restore.snapshot import Snapshot
from snapshots.store import SnapshotStore
from snapshots.upkeep.rewrite import Target

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


class Engine(StrEnum):
    """The engine of the rewrite."""

    LOCAL = "local"
    SPARK = "spark"


def repartition(
    uri: Uri,
    parallelism: Parallelism,
    max_parallelism: MaxParallelism = None,
    hash_: Hash = None,
    rewrite: Annotated[
        bool, typer.Option("--rewrite", help="Rewrite every row, to change max parallelism or hash.")
    ] = False,
    engine: Annotated[Engine, typer.Option("--engine", help="The engine of the rewrite.")] = Engine.LOCAL,
    as_json: AsJson = False,
    storage_option: StorageOptions = None,
) -> None:
    """Commit a snapshot with another parallelism, over the same files or with rewritten ones."""
    store = open_store(uri, storage_option)
    old = store.load()
    target = Target.of(old.manifest, parallelism, max_parallelism, hash_)
    if not rewrite:
        target.check_is_kept(old.manifest, "add --rewrite")
    shown = output_for(as_json=as_json)
    shown.note(intention(old.manifest, target, rewrite=rewrite))
    start = time.perf_counter()
    new = _run(store, target, rewrite=rewrite, engine=engine)
    milliseconds = (time.perf_counter() - start) * 1000
    shown.show(Repartition.of(old.manifest, new.manifest, milliseconds))


def intention(manifest: Manifest, target: Target, *, rewrite: bool) -> str:
    """Describe what a repartition is about to do."""
    to = f"to parallelism {target.parallelism}"
    if not rewrite:
        return f"snapshot {manifest.version} {to}: metadata only, 0 bytes of {manifest.bytes_total:,} are moved"
    files = [file for file in manifest.whole_files if file.kind in {"keyed", "delta", "in_flight"}]
    return (
        f"snapshot {manifest.version} {to}, {target.max_parallelism} key groups by {target.hash} (from "
        f"{manifest.max_parallelism} by {manifest.hash}): a rewrite, which reads {sum(file.bytes for file in files):,} "
        f"bytes in {len(files):,} files and writes about as many; version {manifest.version} stays as it is"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Repartition(FlatReport):
    """The report of ``keygroups repartition``."""

    old_version: int
    new_version: int
    old_parallelism: int
    new_parallelism: int
    old_max_parallelism: int
    max_parallelism: int
    old_hash: str
    hash: str
    operation: str
    bytes_read: int
    bytes_written: int
    milliseconds: float

    @classmethod
    def of(cls, old: Manifest, new: Manifest, milliseconds: float) -> Repartition:
        """Compare two snapshots: files only in the old one were read, files only in the new one were written."""
        before = {file.path: file.bytes for file in old.files}
        after = {file.path: file.bytes for file in new.files}
        return cls(
            old_version=old.version,
            new_version=new.version,
            old_parallelism=old.parallelism,
            new_parallelism=new.parallelism,
            old_max_parallelism=old.max_parallelism,
            max_parallelism=new.max_parallelism,
            old_hash=old.hash,
            hash=new.hash,
            operation=new.operation,
            bytes_read=sum(before[path] for path in before.keys() - after.keys()),
            bytes_written=sum(after[path] for path in after.keys() - before.keys()),
            milliseconds=round(milliseconds, 3),
        )

    def tables(self) -> Iterable[Table]:
        """Return the report as tables for people."""
        word = "rewritten" if self.operation == "rewrite" else "repartitioned"
        yield Table(
            f"{word} in {self.milliseconds:.1f} ms, {self.bytes_read:,} bytes read and {self.bytes_written:,} written",
            ("", "from", "to"),
            (
                ("snapshot", self.old_version, self.new_version),
                ("parallelism", self.old_parallelism, self.new_parallelism),
                ("max parallelism", self.old_max_parallelism, self.max_parallelism),
                ("hash", self.old_hash, self.hash),
            ),
        )


def _run(store: SnapshotStore, target: Target, *, rewrite: bool, engine: Engine) -> Snapshot:
    def run(**how: Any) -> Snapshot:
        return store.repartition(
            target.parallelism,
            max_parallelism=target.max_parallelism,
            hash=target.hash,
            rewrite=rewrite,
            **how,
        )

    if not rewrite:
        return run()
    if engine is Engine.SPARK:
        from snapshots.upkeep.spark import session

        with session() as spark:
            return run(engine="spark", spark=spark)
    with progress_bar("rewriting") as progress:
        return run(progress=progress)
