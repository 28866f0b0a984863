"""``keygroups inspect``: what a snapshot holds, and who owns it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from keygroups.ranges import KeyGroupRange, range_of
from snapshots.cli.options import AsJson, StorageOptions, Uri, Version, load, open_store
from snapshots.cli.output import Table, output_for
from snapshots.cli.sizes import Size, size_of
from snapshots.manifest import Manifest
from snapshots.snapshot import Snapshot


def inspect(uri: Uri, version: Version = None, as_json: AsJson = False, storage_option: StorageOptions = None) -> None:
    """Show a snapshot's states, in-flight elements and key-group ranges."""
    output = output_for(as_json=as_json)
    report = Inspection.of(load(open_store(uri, storage_option), version))
    output.show(report)
    if not all(subtask.size.is_exact for subtask in report.subtasks):
        output.note("~ by share of key groups: a file holds more than the subtask's range, or the same keys as another")


@dataclass(frozen=True, slots=True)
class InFlight:
    """The in-flight elements of a snapshot, counted.

    Attributes
    ----------
    pending, completed : int
        Records whose call has not, or has, returned.
    watermarks : int
        Watermarks between them.
    by_key_group : numpy.ndarray
        Elements with a key, for each key group.
    """

    pending: int
    completed: int
    watermarks: int
    by_key_group: np.ndarray[tuple[int], np.dtype[np.int64]]

    @classmethod
    def of(cls, elements: pa.Table, max_parallelism: int) -> InFlight:
        """Count the elements of a table of `Snapshot.in_flight`."""
        is_watermark = elements["kind"].to_numpy() == "watermark"
        completed = elements["completed"].to_numpy() & ~is_watermark
        key_groups = elements["key_group"].to_numpy()
        return cls(
            pending=int((~completed & ~is_watermark).sum()),
            completed=int(completed.sum()),
            watermarks=int(is_watermark.sum()),
            by_key_group=np.bincount(key_groups[key_groups >= 0], minlength=max_parallelism),
        )

    def count_in(self, key_groups: KeyGroupRange) -> int:
        """Return how many elements have a key in the range."""
        return int(self.by_key_group[key_groups.start : key_groups.end + 1].sum())


@dataclass(frozen=True, slots=True)
class Subtask:
    """What one subtask restores."""

    index: int
    key_groups: KeyGroupRange
    size: Size
    in_flight: int


@dataclass(frozen=True, slots=True)
class Inspection:
    """The report of ``keygroups inspect``."""

    manifest: Manifest
    subtasks: tuple[Subtask, ...]
    in_flight: InFlight

    @classmethod
    def of(cls, snapshot: Snapshot) -> Inspection:
        """Read what the report needs: the manifest, and the in-flight elements."""
        manifest = snapshot.manifest
        in_flight = InFlight.of(snapshot.in_flight(), manifest.max_parallelism)
        keyed = manifest.files_of("keyed", "delta")
        ranges = (
            range_of(index, manifest.parallelism, manifest.max_parallelism) for index in range(manifest.parallelism)
        )
        subtasks = tuple(
            Subtask(index, key_groups, size_of(keyed, key_groups), in_flight.count_in(key_groups))
            for index, key_groups in enumerate(ranges)
        )
        return cls(manifest, subtasks, in_flight)

    def to_json(self) -> dict[str, Any]:
        """Return the stable form."""
        manifest = self.manifest
        return {
            "version": manifest.version,
            "snapshot_id": manifest.snapshot_id,
            "parent_version": manifest.parent_version,
            "created_at": manifest.created_at,
            "operation": manifest.operation,
            "operator_id": manifest.operator_id,
            "hash": manifest.hash,
            "parallelism": manifest.parallelism,
            "max_parallelism": manifest.max_parallelism,
            "rows": manifest.rows_total,
            "bytes": manifest.bytes_total,
            "subtasks": [
                {
                    "subtask": subtask.index,
                    "first": subtask.key_groups.start,
                    "last": subtask.key_groups.end,
                    "rows": subtask.size.rows,
                    "bytes": subtask.size.bytes,
                    "exact": subtask.size.is_exact,
                    "in_flight": subtask.in_flight,
                }
                for subtask in self.subtasks
            ],
            "states": [
                dict(zip(("name", "kind", "type", "rows", "bytes"), row, strict=True)) for row in self._states()
            ],
            "in_flight": {
                "elements": manifest.in_flight_count,
                "pending": self.in_flight.pending,
                "completed": self.in_flight.completed,
                "watermarks": self.in_flight.watermarks,
            },
            "watermarks": list(manifest.watermarks),
            "source_position": manifest.source_position,
            "metrics": manifest.metrics,
        }

    def tables(self) -> Iterable[Table]:
        """Return the form for people."""
        manifest = self.manifest
        yield Table(f"snapshot {manifest.version} of {manifest.operator_id}", (), tuple(self._facts()))
        yield Table(
            "key groups",
            ("subtask", "first", "last", "key groups", "rows", "bytes", "in flight"),
            tuple(
                (
                    subtask.index,
                    subtask.key_groups.start,
                    subtask.key_groups.end,
                    len(subtask.key_groups),
                    _approximate(subtask.size.rows, subtask.size),
                    _approximate(subtask.size.bytes, subtask.size),
                    subtask.in_flight,
                )
                for subtask in self.subtasks
            ),
        )
        yield Table("states", ("state", "kind", "type", "rows", "bytes"), tuple(self._states()))

    def _facts(self) -> Iterable[tuple[str, object]]:
        manifest = self.manifest
        yield "id", manifest.snapshot_id
        yield "parent", manifest.parent_version
        yield "created", manifest.created_at
        yield "operation", manifest.operation
        yield "hash", manifest.hash
        yield "parallelism", f"{manifest.parallelism} of at most {manifest.max_parallelism}"
        yield "rows", manifest.rows_total
        yield "bytes", manifest.bytes_total
        yield "in flight", manifest.in_flight_count
        yield "  pending", self.in_flight.pending
        yield "  completed", self.in_flight.completed
        yield "  watermarks", self.in_flight.watermarks
        for channel, watermark in enumerate(manifest.watermarks):
            yield f"watermark of channel {channel}", watermark
        for name, value in (manifest.source_position or {}).items():
            yield f"source {name}", value
        for name, count in manifest.metrics.items():
            yield f"metric {name}", count

    def _states(self) -> Iterable[tuple[str, str, str | None, int, int]]:
        for state in self.manifest.states:
            files = self.manifest.files_of("keyed", "delta", state=state.name)
            yield state.name, state.kind, state.type, sum(f.rows for f in files), sum(f.bytes for f in files)


def _approximate(number: int, size: Size) -> int | str:
    return number if size.is_exact else f"~{number:,}"
