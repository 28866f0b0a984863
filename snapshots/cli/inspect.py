"""``keygroups ls``, ``inspect`` and ``report``: which operators there are, and what is in a snapshot."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from keygroups.ranges import KeyGroupRange, range_of
from keygroups.ttl import wall_time
from snapshots.cli.live import progress_bar
from snapshots.cli.options import AsJson, StorageOptions, Uri, Version, open_store, parsed
from snapshots.cli.output import CHECK_FAILED, FlatReport, NotFound, Table, bar_chart, key_text, output_for, value_text
from snapshots.filesystem import open_folder
from snapshots.folder_hints import folder_above
from snapshots.format.manifest import Manifest
from snapshots.inspection import (
    InFlightSummary,
    KeyGroupSizes,
    LargeKey,
    Operators,
    OperatorSummary,
    Size,
    VersionSummary,
    history,
    in_flight_summary,
    key_group_sizes,
    largest_keys,
    operator_state_sizes,
    operators_in,
    steps_of,
)
from snapshots.inspection.export import plain
from snapshots.inspection.for_people import age_text, moment_text, size_text, watermark_text
from snapshots.inspection.target import replacing
from snapshots.report import render
from snapshots.restore.snapshot import Snapshot
from snapshots.store import SnapshotStore
from snapshots.versions import lost_text, lost_versions

History = Annotated[int, typer.Option("--history", metavar="N", min=0, help="How many of the newest versions to list.")]
Largest = Annotated[
    int, typer.Option("--largest", metavar="N", min=0, help="How many of the largest keys to show; reads every row.")
]

Target = Annotated[str, typer.Option("-o", "--output", metavar="FILE.html", help="The file.")]
Planned = Annotated[
    int | None,
    typer.Option("--parallelism", metavar="N", min=1, help="Also show what a rescale to this parallelism would move."),
]
LargestShown = Annotated[
    int, typer.Option("--largest", metavar="N", min=0, help="How many of the largest keys to show; 0 reads no rows.")
]


Samples = Annotated[
    int,
    typer.Option("--samples", metavar="N", min=0, max=1000, help="How many rows of each state to show, with values."),
]

Above = Annotated[
    str, typer.Argument(metavar="FOLDER", help="The folder above the folders of operators and jobs: a path or a URI.")
]
Limit = Annotated[
    int,
    typer.Option(
        "--limit", metavar="N", min=1, max=10_000, help="How many folders to read, in the order of their names."
    ),
]


def ls(folder: Above, limit: Limit = 100, as_json: AsJson = False, storage_option: StorageOptions = None) -> None:
    """List the operators and jobs under a folder: the newest version of each, when it was committed, and its size."""
    output = output_for(as_json=as_json)
    above = open_folder(folder, parsed(storage_option))
    found = operators_in(above, limit)
    if not found.found:
        raise NotFound(f"no operator or job has its folder in {found.uri}{_seen(found, folder_above(above))}")
    output.show(Listing(found, wall_time() / 1000))
    for operator in found.found:
        if operator.problem is not None:
            output.note(f"{operator.operator_id}: {operator.problem}")
    if found.looked_into < found.folders:
        output.note(f"looked into {found.looked_into} of {found.folders} names; for more: --limit")
    if any(operator.problem is not None for operator in found.found):
        raise typer.Exit(CHECK_FAILED)


def _seen(found: Operators, below: str | None) -> str:
    """Say what is in a folder without operators, and where they may be: `below` is a folder of it that has some."""
    if not found.folders:
        return ", which is empty or absent: check the path, or start one there"
    if below is not None:
        return f" itself; there are some one level below: `keygroups ls {below}`"
    if found.looked_into < found.folders:
        return f"; the first {found.looked_into} of {found.folders} names are of something else; for more: --limit"
    return f"; its names ({found.folders}) are of something else: name the folder right above the operators' folders"


@dataclass(frozen=True, slots=True)
class Listing:
    """The report of ``keygroups ls``."""

    found: Operators
    now: float

    def to_json(self) -> dict[str, Any]:
        """Return the report as data for JSON, in a stable form."""
        return {
            "folder": self.found.uri,
            "operators": [_json_of(one) for one in self.found.found],
            "names": self.found.folders,
            "looked_into": self.found.looked_into,
        }

    def tables(self) -> Iterable[Table]:
        """Return the report as tables for people."""
        columns = ("name", "kind", "version", "committed", "operation", "subtasks", "rows", "size", "in flight")
        spare = ("operation", "subtasks", "kind", "rows", "in flight")
        yield Table(f"snapshots in {self.found.uri}", columns, tuple(map(self._row, self.found.found)), spare)

    def _row(self, operator: OperatorSummary) -> tuple[object, ...]:
        newest = operator.newest
        if newest is None:
            return operator.operator_id, None, None, f"unreadable: {type(operator.problem).__name__}", *(None,) * 5
        return (
            *(operator.operator_id, _kind_of(newest), newest.version),
            *(age_text(newest.created_at, self.now), newest.operation),
            *(newest.parallelism, newest.rows_total, size_text(newest.bytes_total), newest.in_flight_count),
        )


def _kind_of(newest: Manifest) -> str:
    return "job" if newest.step_names else "operator"


def _json_of(operator: OperatorSummary) -> dict[str, Any]:
    newest = operator.newest
    names = ("version", "created_at", "operation", "parallelism", "max_parallelism")
    return {
        "operator_id": operator.operator_id,
        "uri": operator.uri,
        "kind": None if newest is None else _kind_of(newest),
        **{name: None if newest is None else getattr(newest, name) for name in names},
        "rows": None if newest is None else newest.rows_total,
        "bytes": None if newest is None else newest.bytes_total,
        "in_flight": None if newest is None else newest.in_flight_count,
        "problem": None if operator.problem is None else str(operator.problem),
    }


def inspect(
    uri: Uri,
    version: Version = None,
    history: History = 5,
    largest: Largest = 0,
    as_json: AsJson = False,
    storage_option: StorageOptions = None,
) -> None:
    """Show a snapshot: its states, in-flight elements, owners and skew of key groups, and its history."""
    output = output_for(as_json=as_json)
    store = open_store(uri, storage_option)
    report = Inspection.of(store, store.load(version), versions=history, largest=largest)
    output.show(report)
    for gap in report.lost:
        output.note(lost_text(gap))
    if not all(subtask.size.is_exact for subtask in report.subtasks):
        output.note("~ at most: a delta may have rows for keys that its base has as well; keygroups compact folds them")


@dataclass(frozen=True, slots=True)
class SubtaskSection:
    """The share of a snapshot that one subtask restores."""

    index: int
    key_groups: KeyGroupRange
    size: Size
    in_flight: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspection:
    """The report of ``keygroups inspect``."""

    manifest: Manifest
    subtasks: tuple[SubtaskSection, ...]
    in_flight: InFlightSummary
    sizes: dict[str, KeyGroupSizes]
    history: list[VersionSummary]
    lost: list[range]
    largest: dict[str, list[LargeKey]] | None
    now: float

    @classmethod
    def of(cls, store: SnapshotStore, snapshot: Snapshot, *, versions: int = 5, largest: int = 0) -> Inspection:
        """Read manifests, footers and in-flight elements; with `largest`, also all rows."""
        manifest = snapshot.manifest
        in_flight, sizes = in_flight_summary(snapshot), key_group_sizes(snapshot)
        everything = KeyGroupSizes.sum_of(sizes.values(), manifest.max_parallelism)
        subtasks = []
        for index in range(manifest.parallelism):
            owned = range_of(index, manifest.parallelism, manifest.max_parallelism)
            rows, delta_rows, bytes_ = everything.within(owned)
            size = Size(rows + delta_rows, bytes_, everything.is_exact and not delta_rows)
            subtasks.append(SubtaskSection(index, owned, size, in_flight.count_in(owned)))
        return cls(
            manifest=manifest,
            subtasks=tuple(subtasks),
            in_flight=in_flight,
            sizes=sizes,
            history=history(store, versions) if versions else [],
            lost=lost_versions(store.folder) if versions else [],
            largest={name: largest_keys(snapshot, name, largest) for name in sizes} if largest else None,
            now=wall_time() / 1000,
        )

    @property
    def all_sizes(self) -> KeyGroupSizes:
        """The sizes of all states together."""
        return KeyGroupSizes.sum_of(self.sizes.values(), self.manifest.max_parallelism)

    def to_json(self) -> dict[str, Any]:
        """Return the report as data for JSON, in a stable form."""
        manifest = self.manifest
        report = {
            "version": manifest.version,
            "snapshot_id": manifest.snapshot_id,
            "parent_version": manifest.parent_version,
            "created_at": manifest.created_at,
            "operation": manifest.operation,
            "operator_id": manifest.operator_id,
            "lineage": manifest.lineage,
            "hash": manifest.hash,
            "parallelism": manifest.parallelism,
            "max_parallelism": manifest.max_parallelism,
            "rows": manifest.rows_total,
            "bytes": manifest.bytes_total,
            "output_rows": _output_rows(manifest),
            "subtasks": [_subtask_json(subtask) for subtask in self.subtasks],
            "states": [
                dict(zip(("name", "kind", "type", "rows", "bytes", "skew"), row, strict=True)) for row in self._states()
            ],
            "operator_states": [asdict(state) for state in operator_state_sizes(manifest)],
            "in_flight": {
                "elements": manifest.in_flight_count,
                "pending": self.in_flight.pending,
                "completed": self.in_flight.completed,
                "watermarks": self.in_flight.watermarks,
            },
            "steps": [asdict(step) for step in steps_of(manifest)],
            "watermarks": list(manifest.watermarks),
            "source_position": manifest.source_position,
            "metrics": manifest.metrics,
            "in_flight_by_attempt": {str(attempt): n for attempt, n in self.in_flight.by_attempt.items()},
            "in_flight_by_age": dict(self.in_flight.by_age),
            "key_groups": _sizes_json(self.all_sizes),
            "history": [asdict(one) for one in self.history],
            "lost_versions": [{"first": gap[0], "last": gap[-1]} for gap in self.lost],
        }
        if self.largest is not None:
            report["largest_keys"] = {
                name: [asdict(key) | {"key": plain(key.key)} for key in keys] for name, keys in self.largest.items()
            }
        return report

    def tables(self) -> Iterable[Table]:
        """Return the report as tables for people."""
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
            spare=("key groups",),
        )
        states = tuple((*row[:5], f"{row[5]:.1f}") for row in self._states())
        if manifest.step_names:
            yield _steps_table(manifest)
        yield Table("states", ("state", "kind", "type", "rows", "bytes", "skew"), states, ("type", "kind"))
        yield bar_chart(self.all_sizes)
        if manifest.operator_states:
            sizes = tuple((one.name, one.mode, one.items, one.bytes) for one in operator_state_sizes(manifest))
            yield Table("operator states", ("state", "mode", "items", "bytes"), sizes)
        if self.in_flight.pending + self.in_flight.completed:
            ages = (*((age, n) for age, n in self.in_flight.by_age.items() if n),)
            attempts = (*((f"attempt {attempt}", n) for attempt, n in self.in_flight.by_attempt.items()),)
            yield Table("in flight, by age and by attempt", (), ages + attempts)
        for name, keys in (self.largest or {}).items():
            rows = tuple((key_text(key.key), key.key_group, key.entries, key.bytes) for key in keys)
            yield Table(f"largest keys of {name}", ("key", "key group", "entries", "bytes"), rows)
        if self.history:
            yield _history_table(self.history, self.now)

    def _facts(self) -> Iterable[tuple[str, object]]:
        manifest = self.manifest
        yield "id", manifest.snapshot_id
        yield "parent", manifest.parent_version
        yield "created", moment_text(manifest.created_at, self.now)
        yield "operation", manifest.operation
        yield "lineage", manifest.lineage
        yield "hash", manifest.hash
        yield "parallelism", f"{manifest.parallelism} of at most {manifest.max_parallelism}"
        yield "rows", manifest.rows_total
        if outputs := _output_rows(manifest):
            yield "  of outputs that are kept", outputs
        yield "bytes", manifest.bytes_total
        yield "in flight", manifest.in_flight_count
        yield "  pending", self.in_flight.pending
        yield "  completed", self.in_flight.completed
        yield "  watermarks", self.in_flight.watermarks
        # In a job, the table of steps has them for each step.
        yield from () if manifest.step_names else _watermark_facts(manifest.watermarks)
        for name, value in (manifest.source_position or {}).items():
            yield f"source {name}", value if isinstance(value, int | str | None) else value_text(value)
        for name, count in manifest.metrics.items():
            yield f"metric {name}", count

    def _states(self) -> Iterable[tuple[str, str, str | None, int, int, float]]:
        for state in self.manifest.states:
            files = self.manifest.files_of("keyed", "delta", state=state.name)
            size = sum(f.rows for f in files), sum(f.bytes for f in files)
            yield state.name, state.kind, state.type, *size, round(self.sizes[state.name].skew, 3)


def _watermark_facts(watermarks: tuple[int | None, ...]) -> Iterable[tuple[str, object]]:
    """Say between which times the watermarks are; there may be hundreds of channels, which are in the JSON."""
    marks = [mark for mark in watermarks if mark is not None]
    if len(set(marks)) < 2:
        yield "watermark", watermark_text(min(marks, default=None))
    else:
        yield "lowest watermark", watermark_text(min(marks))
        yield "highest watermark", watermark_text(max(marks))
    if marks and len(marks) < len(watermarks):
        yield "channels without watermark", len(watermarks) - len(marks)


def _steps_table(manifest: Manifest) -> Table:
    columns = ("step", "rows", "bytes", "in flight", "watermark")
    rows = tuple(
        (one.name, one.rows, one.bytes, one.in_flight, watermark_text(one.watermark)) for one in steps_of(manifest)
    )
    return Table("steps of the job", columns, rows)


def _subtask_json(subtask: SubtaskSection) -> dict[str, Any]:
    return {
        "subtask": subtask.index,
        "first": subtask.key_groups.start,
        "last": subtask.key_groups.end,
        "rows": subtask.size.rows,
        "bytes": subtask.size.bytes,
        "exact": subtask.size.is_exact,
        "in_flight": subtask.in_flight,
    }


def _sizes_json(sizes: KeyGroupSizes) -> dict[str, Any]:
    return {
        "rows": sizes.rows.tolist(),
        "delta_rows": sizes.delta_rows.tolist(),
        "bytes": sizes.bytes.tolist(),
        "exact": sizes.is_exact,
        "skew": round(sizes.skew, 3),
    }


def _output_rows(manifest: Manifest) -> int:
    """Return the rows of outputs that a snapshot keeps until the sink has had them; `rows` counts them, too."""
    return sum(file.rows for file in manifest.whole_files if file.kind == "output")


def _history_table(versions: list[VersionSummary], now: float) -> Table:
    columns = ("version", "created", "operation", "subtasks", "files", "deltas", "size", "added", "in flight", "pinned")
    rows: tuple[tuple[object, ...], ...] = tuple(
        (
            *(one.version, age_text(one.created_at, now), one.operation, one.parallelism, one.files, one.deltas),
            *(size_text(one.bytes), size_text(one.bytes_added), one.in_flight, "pinned" if one.pinned else None),
        )
        for one in versions
    )
    table = Table("history", columns, rows, spare=("deltas", "files", "subtasks", "added"))
    return table if any(one.pinned for one in versions) else table.without("pinned")


def _approximate(number: int, size: Size) -> int | str:
    return number if size.is_exact else f"~{number:,}"


def report(
    uri: Uri,
    output: Target,
    parallelism: Planned = None,
    version: Version = None,
    largest: LargestShown = 10,
    samples: Samples = 0,
    as_json: AsJson = False,
    storage_option: StorageOptions = None,
) -> None:
    """Write a snapshot as one web page: history, key groups, subtasks, in-flight elements, largest keys, settings."""
    store = open_store(uri, storage_option)
    snapshot = store.load(version)
    with progress_bar("reading") as progress:
        page = render(store, snapshot, parallelism=parallelism, largest=largest, samples=samples, progress=progress)
    with replacing(Path(output)) as unfinished:
        Path(unfinished).write_text(page, encoding="utf-8")
    written = Written(version=snapshot.version, path=output, bytes=len(page.encode()))
    output_for(as_json=as_json).show(written)


@dataclass(frozen=True, slots=True, kw_only=True)
class Written(FlatReport):
    """The report of ``keygroups report``."""

    version: int
    path: str
    bytes: int

    def tables(self) -> Iterable[Table]:
        """Return the report as tables for people."""
        yield Table(f"report of snapshot {self.version}", (), (("file", self.path), ("bytes", self.bytes)))
