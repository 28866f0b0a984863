"""What the page shows: a snapshot, its newest epochs, changes since the parent, samples; the geometry of charts."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from keygroups.ranges import KeyGroupRange, check_parallelism, range_of
from keygroups.rescale import plan_rescale
from snapshots.errors import IncompatibleSnapshot, SnapshotNotFound
from snapshots.format.manifest import Manifest
from snapshots.format.schemas import ENTRY_COLUMNS
from snapshots.inspection import (
    Commit,
    Difference,
    InFlightSummary,
    KeyGroupSizes,
    LargeKey,
    OperatorStateSize,
    RecentVersions,
    StepSummary,
    VersionSummary,
    compare,
    history,
    in_flight_summary,
    key_group_sizes,
    largest_keys,
    operator_state_sizes,
    steps_of,
)
from snapshots.inspection.for_people import duration_text, key_text, size_text, value_text
from snapshots.progress import Progress, progress_of
from snapshots.restore.reader import decode_column
from snapshots.restore.snapshot import Snapshot
from snapshots.restore.streaming import StateStream, all_key_groups
from snapshots.store import SnapshotStore

_TEXT_LENGTH_MAX = 120
_CHANNELS_MAX = 64

CELLS_MAX = 1024
"""With more key groups than this, a cell stands for several of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """Everything that the template shows."""

    manifest: Manifest
    sizes: dict[str, KeyGroupSizes]
    total: KeyGroupSizes
    row_map: HeatMap
    byte_map: HeatMap
    ownership: Ownership
    rescale: Rescale | None
    in_flight: InFlightSummary
    largest: dict[str, list[LargeKey]]
    history: list[VersionSummary]
    epochs: list[ReportedEpoch]
    changes: Difference | None
    samples: dict[str, list[StateRow]]

    @property
    def operator_states(self) -> tuple[OperatorStateSize, ...]:
        """The states without a key."""
        return operator_state_sizes(self.manifest)

    @property
    def steps(self) -> tuple[StepSummary, ...]:
        """The steps of a job."""
        return steps_of(self.manifest)

    @property
    def oldest_call_seconds(self) -> float | None:
        """How long the oldest call had been under way at the commit; None if the version does not say."""
        oldest = Commit.of(self.manifest).count("oldest_call_milliseconds")
        return None if oldest is None else oldest / 1000

    @property
    def bytes_max(self) -> int:
        """The size of the largest version in bytes."""
        return max((one.bytes for one in self.history), default=0)


def render(
    store: SnapshotStore,
    snapshot: Snapshot,
    *,
    parallelism: int | None = None,
    largest: int = 10,
    samples: int = 0,
    versions: int = 50,
    progress: Progress | None = None,
) -> str:
    """Return a snapshot as one HTML page without scripts or network requests.

    Parameters
    ----------
    store : SnapshotStore
        The store of the operator, for its history.
    snapshot : Snapshot
        The snapshot.
    parallelism : int, optional
        Also show what a rescale to it would move.
    largest : int
        How many of the largest keys of each state to show; unless it is 0, every row is read, and the snapshot is
        compared with its parent.
    samples : int
        How many rows of each state to show with their values, which may be personal data.
    versions : int
        How many of the newest versions to show.
    progress : callable, optional
        Called with the number of bytes of rows read so far, and the total.

    Raises
    ------
    ConfigError
        The parallelism does not fit the key groups.
    SnapshotCorrupted
        A file is damaged.
    """
    manifest = snapshot.manifest
    if parallelism is not None:
        check_parallelism(parallelism, manifest.max_parallelism)
    sizes = key_group_sizes(snapshot)
    total = KeyGroupSizes.sum_of(sizes.values(), manifest.max_parallelism)
    page = Page(
        manifest=manifest,
        sizes=sizes,
        total=total,
        row_map=HeatMap.of((total.rows + total.delta_rows).tolist()),
        byte_map=HeatMap.of(total.bytes.tolist()),
        ownership=Ownership.of(total, manifest.parallelism),
        rescale=None if parallelism is None else Rescale.of(total, manifest.parallelism, parallelism),
        in_flight=in_flight_summary(snapshot),
        largest=_largest(snapshot, sizes, largest, progress_of(progress)),
        history=history(store, versions),
        epochs=newest_epochs(store, snapshot),
        changes=since_parent(store, snapshot) if largest else None,
        samples=samples_of(snapshot, samples),
    )
    return _environment().get_template("page.html").render(page=page, manifest=manifest, channels_max=_CHANNELS_MAX)


def _largest(
    snapshot: Snapshot, sizes: dict[str, KeyGroupSizes], limit: int, progress: Progress
) -> dict[str, list[LargeKey]]:
    found: dict[str, list[LargeKey]] = {}
    total, done = sum(int(one.bytes.sum()) for one in sizes.values()), 0
    for name, size in sizes.items() if limit else ():
        found[name] = largest_keys(snapshot, name, limit)
        done += int(size.bytes.sum())
        progress(done, total)
    return found


def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("snapshots.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    texts = {"number": _number, "size": size_text, "moment": _moment, "duration": duration_text}
    environment.filters |= texts | {"key": _key, "value": _value, "json": _json}
    return environment


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,}"


def _key(key: Any) -> str:
    return key_text(key, _TEXT_LENGTH_MAX)


def _value(value: Any) -> str:
    return value_text(value, _TEXT_LENGTH_MAX)


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, indent=1)


def _moment(timestamp: int | None) -> str:
    """Format a timestamp as a time, or as a number if it is out of range."""
    if timestamp is None:
        return "none"
    try:
        return dt.datetime.fromtimestamp(timestamp / 1000, dt.UTC).isoformat(timespec="milliseconds")
    except (OverflowError, OSError, ValueError):
        return str(timestamp)


@dataclass(frozen=True, slots=True)
class ReportedEpoch:
    """An epoch of a pipeline or a job.

    Attributes
    ----------
    version : int
        The version that it committed.
    seconds : float
        The time since the version before.
    calls : int or None
        The calls that it made; None if it does not say.
    """

    version: int
    seconds: float
    calls: int | None


@dataclass(frozen=True, slots=True)
class StateRow:
    """A row of a state."""

    key: Any
    entry: Any
    value: Any


def newest_epochs(store: SnapshotStore, snapshot: Snapshot) -> list[ReportedEpoch]:
    """Return the epochs among the newest versions up to a snapshot, from old to new; this reads their manifests."""
    return epochs_among(RecentVersions(store).activity(0.0).recent, snapshot.version)


def epochs_among(commits: Sequence[Commit], version_max: int) -> list[ReportedEpoch]:
    """Return the epochs among versions. The oldest version only tells when the epoch after it began."""
    return [
        ReportedEpoch(after.version, after.seconds - before.seconds, after.count("calls"))
        for before, after in pairwise(commits)
        if after.is_epoch and after.version <= version_max
        # Another machine with another clock may have taken over.
        and before.seconds is not None and after.seconds is not None and after.seconds >= before.seconds
    ]  # fmt: skip


def since_parent(store: SnapshotStore, snapshot: Snapshot) -> Difference | None:
    """Compare a snapshot with its parent; None if that is gone or has other key groups."""
    manifest = snapshot.manifest
    if manifest.parent_version is None:
        return None
    try:
        parent = store.load(manifest.parent_version)
        return compare(parent, snapshot) if parent.manifest.snapshot_id == manifest.parent_id else None
    except (SnapshotNotFound, IncompatibleSnapshot):
        return None


def samples_of(snapshot: Snapshot, limit: int) -> dict[str, list[StateRow]]:
    """Return the first rows of each state, by key group."""
    return {name: _samples(snapshot, name, limit) for name in snapshot.state_names} if limit else {}


def _samples(snapshot: Snapshot, name: str, limit: int) -> list[StateRow]:
    stream = StateStream.of(snapshot.folder, snapshot.manifest, name)
    entry = next((column for column in ENTRY_COLUMNS.values() if column in stream.schema.names), None)
    found: list[StateRow] = []
    for table in stream.tables(all_key_groups(snapshot.manifest)):
        rows = table.slice(0, limit - len(found))
        entries = [None] * rows.num_rows if entry is None else decode_column(rows, entry)
        found += map(StateRow, decode_column(rows, "key"), entries, decode_column(rows, "value"))
        if len(found) >= limit:
            break
    return found


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
