"""Compares two versions of an operator, key group by key group, and only where their files differ."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import repeat
from typing import Any, Literal, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import types

from keygroups.ranges import KeyGroupRange
from keygroups.representation import fields_repr, html_table
from keygroups.values import values_of
from snapshots.errors import IncompatibleSnapshot
from snapshots.format import compute as pc
from snapshots.format.columns import PieceSize
from snapshots.format.manifest import Manifest, StateInfo, manifest_name
from snapshots.format.parquet import KEY_GROUP
from snapshots.format.schemas import ENTRY_COLUMNS, widens
from snapshots.inspection.operator_states import OperatorStateDifference, compare_operator_states
from snapshots.restore.reader import KeyedReader, StateReader, decode_column, merge, runs, with_one_key_type
from snapshots.restore.snapshot import Snapshot
from snapshots.restore.streaming import all_key_groups
from snapshots.restore.tables import STEP, element_tables

Change = Literal["added", "removed", "changed"]

_Completed = dict[tuple[str | None, str], bool]
"""Whether a call has returned, by the step (in a job) and the id of its element."""

_Rows = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class RowChange:
    """One row that differs.

    Attributes
    ----------
    state : str
        The state.
    key_group : int
        The key group of the key.
    key : object
        The key.
    entry : object
        In a list the position, in a map the map key; else None.
    change : {"added", "removed", "changed"}
        How the row differs.
    before, after : object
        The values in the old and in the new version; None where there is no such row.
    """

    state: str
    key_group: int
    key: Any
    entry: Any
    change: Change
    before: Any
    after: Any

    __repr__ = fields_repr


@dataclass(frozen=True, slots=True)
class KeyGroupChange:
    """How many rows of a key group differ."""

    key_group: int
    added: int
    removed: int
    changed: int


@dataclass(frozen=True, slots=True)
class StateDifference:
    """The differences between two versions of a state. A row is a value, an element of a list, or an entry of a map.

    Attributes
    ----------
    name : str
        The state.
    in_old, in_new : bool
        Whether each version has the state.
    key_groups : tuple of KeyGroupChange
        The key groups that differ.
    compared, identical : int
        How many key groups were read, and how many were skipped because both versions have the same files for them.
    """

    name: str
    in_old: bool
    in_new: bool
    key_groups: tuple[KeyGroupChange, ...]
    compared: int
    identical: int

    __repr__ = fields_repr

    @property
    def added(self) -> int:
        """The number of rows that only the new version has."""
        return sum(one.added for one in self.key_groups)

    @property
    def removed(self) -> int:
        """The number of rows that only the old version has."""
        return sum(one.removed for one in self.key_groups)

    @property
    def changed(self) -> int:
        """The number of rows with different values."""
        return sum(one.changed for one in self.key_groups)


@dataclass(frozen=True, slots=True)
class InFlightDifference:
    """The differences of in-flight records: those in only one version, and the progress of those in both."""

    added: int
    gone: int
    still_pending: int
    completed_since: int
    still_completed: int


@dataclass(frozen=True, slots=True)
class Difference:
    """The differences between two versions.

    Attributes
    ----------
    old, new : Manifest
        The two versions.
    states : tuple of StateDifference
        All states of both versions.
    in_flight : InFlightDifference
        The in-flight records; of a job, the records of all steps.
    in_flight_by_step : mapping of str to InFlightDifference
        Of a job, the numbers of each step.
    operator_states : tuple of OperatorStateDifference
        The states without a key.
    rows : tuple of RowChange
        The first rows that differ, up to the requested number.
    """

    old: Manifest
    new: Manifest
    states: tuple[StateDifference, ...]
    in_flight: InFlightDifference
    in_flight_by_step: Mapping[str, InFlightDifference]
    operator_states: tuple[OperatorStateDifference, ...]
    rows: tuple[RowChange, ...]

    __repr__ = fields_repr

    def _repr_html_(self) -> str:
        title = f"from snapshot {self.old.version} to {self.new.version} of {self.new.operator_id}"
        rows = [(state.name, state.added, state.removed, state.changed) for state in self.states]
        return html_table(title, ("state", "added", "removed", "changed"), rows)


def compare(old: Snapshot, new: Snapshot, *, rows: int = 0) -> Difference:
    """Compare two versions of one operator.

    Key groups with the same files in both versions are not read. Of the others, one is in memory at a time, or several
    small ones. Values are equal if their stored forms are equal: NaN equals NaN, and a widened type makes no
    difference.

    Parameters
    ----------
    old, new : Snapshot
        The versions.
    rows : int
        How many of the differing rows to list.

    Raises
    ------
    IncompatibleSnapshot
        The versions have different key groups, so they cannot be compared.
    SnapshotCorrupted
        A file is damaged.
    """
    for what in ("max_parallelism", "hash"):
        expected, found = getattr(old.manifest, what), getattr(new.manifest, what)
        if expected != found:
            raise IncompatibleSnapshot(what, expected, found, "compare versions on one side of the rewrite")
    names = dict.fromkeys([*old.state_names, *new.state_names])
    named: list[RowChange] = []
    states = tuple(_compare_state(old, new, name, named, rows) for name in names)
    before, after = (_completed_by_id(snapshot) for snapshot in (old, new))
    steps = dict.fromkeys([*old.manifest.step_names, *new.manifest.step_names])
    return Difference(
        old.manifest,
        new.manifest,
        states,
        _compare_in_flight(before, after),
        {step: _compare_in_flight(_of_step(before, step), _of_step(after, step)) for step in steps},
        compare_operator_states(old, new),
        tuple(named),
    )


def _compare_state(old: Snapshot, new: Snapshot, name: str, named: list[RowChange], limit: int) -> StateDifference:
    before, after = old.manifest.state(name), new.manifest.state(name)
    key_groups, identical, compared, piece = [], 0, 0, PieceSize()
    for span, layers in _spans(old, new, name, before, after):
        if layers[0] is not None and layers[1] is not None and _paths(layers[0]) == _paths(layers[1]):
            identical += len(span)
            continue
        compared += len(span)
        for tables in _rows(span, *layers, piece):
            changes = _compare_rows(*tables) if _same_kind(before, after) else _all_different(*tables)
            for key_group, found in _by_key_group(changes):
                key_groups.append(KeyGroupChange(key_group, *(one.count for one in found)))
                named += _named(name, key_group, found, limit - len(named))
    return StateDifference(name, before is not None, after is not None, tuple(key_groups), compared, identical)


_Layers: TypeAlias = Sequence[KeyedReader] | None


def _spans(
    old: Snapshot, new: Snapshot, name: str, before: StateInfo | None, after: StateInfo | None
) -> Iterator[tuple[KeyGroupRange, tuple[_Layers, _Layers]]]:
    """Divide the key groups into runs that have the same files on each side."""
    everything = all_key_groups(old.manifest)
    whole: list[tuple[KeyGroupRange, _Layers]] = [(everything, None)]
    sides = [
        deque(whole if info is None else _state_reader(snapshot, name).spans(everything))
        for snapshot, info in ((old, before), (new, after))
    ]
    while sides[0] and sides[1]:
        (span, layers), (other_span, other_layers) = sides[0][0], sides[1][0]
        common = span.intersection(other_span)
        assert common is not None, "both sides cover all key groups, in order"
        yield common, (layers, other_layers)
        for side in sides:
            if side[0][0].end == common.end:
                side.popleft()


def _state_reader(snapshot: Snapshot, name: str) -> StateReader:
    files = snapshot.manifest.files_of("keyed", "delta", state=name)
    return StateReader(snapshot.folder, files, snapshot.folder.path(manifest_name(snapshot.version)))


def _paths(layers: Sequence[KeyedReader]) -> list[str]:
    return [layer.file.path for layer in layers]


def _same_kind(before: StateInfo | None, after: StateInfo | None) -> bool:
    return before is not None and after is not None and (before.kind, before.codec) == (after.kind, after.codec)


def _rows(
    span: KeyGroupRange, old: _Layers, new: _Layers, piece: PieceSize
) -> Iterator[tuple[pa.Table | None, pa.Table | None]]:
    """Yield the rows of both sides, of one key group or of several small ones."""
    for _, tables in runs(span, [*(old or ()), *(new or ())], piece):
        count = len(old or ())
        yield None if old is None else merge(tables[:count]), None if new is None else merge(tables[count:])


@dataclass(frozen=True)
class _Changes:
    """Rows that differ in one way: their places in the old and in the new table; pairs, if they are in both.

    Their key groups ascend.
    """

    change: Change
    old: tuple[pa.Table, NDArray[np.int64]] | None
    new: tuple[pa.Table, NDArray[np.int64]] | None

    @property
    def count(self) -> int:
        return max(0 if side is None else len(side[1]) for side in (self.old, self.new))

    @cached_property
    def key_groups(self) -> NDArray[np.int32]:
        """The key group of each row, ascending."""
        table, rows = self.new or self.old or (None, None)
        return np.zeros(0, np.int32) if table is None else table.column(KEY_GROUP).to_numpy()[rows]

    def of(self, key_group: int) -> _Changes:
        """Return the rows of one key group."""
        start, end = np.searchsorted(self.key_groups, [key_group, key_group + 1]).tolist()
        old, new = (None if side is None else (side[0], side[1][start:end]) for side in (self.old, self.new))
        return _Changes(self.change, old, new)


def _by_key_group(changes: Sequence[_Changes]) -> Iterator[tuple[int, list[_Changes]]]:
    for key_group in np.unique(np.concatenate([one.key_groups for one in changes])).tolist():
        yield key_group, [one.of(key_group) for one in changes]


def _all_different(old: pa.Table | None, new: pa.Table | None) -> tuple[_Changes, ...]:
    added = None if new is None else (new, np.arange(new.num_rows))
    removed = None if old is None else (old, np.arange(old.num_rows))
    return _Changes("added", None, added), _Changes("removed", removed, None), _Changes("changed", None, None)


def _compare_rows(old: pa.Table | None, new: pa.Table | None) -> tuple[_Changes, ...]:
    """Return the rows that were added, removed and changed."""
    assert old is not None, "both versions have the state"
    assert new is not None, "both versions have the state"
    if not old.num_rows or not new.num_rows:
        return _all_different(old, new)
    old, new = with_one_key_type([old, new])
    places = _places_in(old, new)
    in_both = np.flatnonzero(places >= 0)
    removed = np.ones(old.num_rows, np.bool_)
    removed[places[in_both]] = False
    values = old.column("value").take(places[in_both]), new.column("value").take(in_both)
    changed = in_both[~equal_rows(*values)]
    return (
        _Changes("added", None, (new, np.flatnonzero(places < 0))),
        _Changes("removed", (old, np.flatnonzero(removed)), None),
        _Changes("changed", (old, places[changed]), (new, changed)),
    )


def _places_in(old: pa.Table, new: pa.Table) -> NDArray[np.int64]:
    """Return for each new row the number of the old row with the same key and entry, or -1."""
    names = ["key", *(name for name in ENTRY_COLUMNS.values() if name in new.schema.names)]
    numbered = old.select(names).append_column("place", pa.array(np.arange(old.num_rows)))
    wanted = new.select(names).append_column("row", pa.array(np.arange(new.num_rows)))
    joined = wanted.join(numbered, names, join_type="left outer", use_threads=False).sort_by("row")
    places: NDArray[np.int64] = pc.fill_null(joined.column("place"), -1).to_numpy()
    return places


def _named(state: str, key_group: int, found: Iterable[_Changes], limit: int) -> Iterator[RowChange]:
    for changes in found:
        before, after = (_first(side, limit) for side in (changes.old, changes.new))
        rows = before if after is None else after
        if rows is None or not rows.num_rows:
            continue
        limit -= rows.num_rows
        entry = next((name for name in ENTRY_COLUMNS.values() if name in rows.schema.names), None)
        columns = (
            decode_column(rows, "key"),
            repeat(None) if entry is None else decode_column(rows, entry),
            *(repeat(None) if side is None else decode_column(side, "value") for side in (before, after)),
        )
        for key, one, old, new in zip(*columns, strict=False):
            yield RowChange(state, key_group, key, one, changes.change, old, new)


def _first(side: tuple[pa.Table, NDArray[np.int64]] | None, limit: int) -> pa.Table | None:
    return None if side is None else side[0].take(side[1][: max(limit, 0)])


def _compare_in_flight(before: _Completed, after: _Completed) -> InFlightDifference:
    both = before.keys() & after.keys()
    return InFlightDifference(
        added=len(after) - len(both),
        gone=len(before) - len(both),
        still_pending=sum(not after[one] for one in both),
        completed_since=sum(after[one] and not before[one] for one in both),
        still_completed=sum(after[one] and before[one] for one in both),
    )


def _of_step(completed: _Completed, step: str) -> _Completed:
    return {one: has_returned for one, has_returned in completed.items() if one[0] == step}


def _completed_by_id(snapshot: Snapshot) -> _Completed:
    """Return, by id, whether the call of each in-flight record has returned; only ids and flags are kept in memory."""
    found: _Completed = {}
    for table in element_tables(snapshot.folder, snapshot.manifest):
        records = table.filter(pc.equal(table.column("kind"), "record"))
        steps = records.column(STEP).to_pylist() if STEP in records.schema.names else repeat(None)
        ids = zip(steps, records.column("element_id").to_pylist(), strict=False)
        found |= dict(zip(ids, records.column("completed").to_pylist(), strict=True))
    return found


def equal_rows(old: pa.ChunkedArray, new: pa.ChunkedArray) -> _Rows:
    """Return for each row whether two columns hold the same value; null equals null, and NaN equals NaN.

    Columns of different types are compared as the wider type, and numbers by their value; all else is different.

    Examples
    --------
    >>> equal_rows(pa.chunked_array([[1, None, 3]]), pa.chunked_array([[1.0, None, 4.0]])).tolist()
    [True, True, False]
    """
    assert len(old) == len(new), "rows are compared in pairs"
    if old.type != new.type:
        # These casts keep every value: that is what `widens` says.
        if widens(old.type, new.type):
            old = old.cast(new.type)
        elif widens(new.type, old.type):
            new = new.cast(old.type)
        elif _is_number(old.type) and _is_number(new.type):
            # Python compares whole numbers and fractions exactly. Arrow would round the former, or fail.
            return np.array([one == other for one, other in zip(values_of(old), values_of(new), strict=True)], np.bool_)
        else:
            return np.zeros(len(old), np.bool_)
    if types.is_floating(old.type):
        return _equal_floats(old, new)
    if types.is_nested(old.type) or types.is_null(old.type) or types.is_interval(old.type):
        return _equal_texts(old, new)
    equal = pc.fill_null(pc.equal(old, new), False)
    return _mask(pc.or_(equal, pc.and_(pc.is_null(old), pc.is_null(new))))


def _is_number(type_: pa.DataType) -> bool:
    return bool(types.is_integer(type_) or types.is_floating(type_) or types.is_decimal(type_))


def _equal_floats(old: pa.ChunkedArray, new: pa.ChunkedArray) -> _Rows:
    """Compare floats, and the signs of zeros, which are part of the value."""
    one, other = old.to_numpy(), new.to_numpy()  # null is NaN there
    same = (one == other) & (np.signbit(one) == np.signbit(other))
    both_nan = np.isnan(one) & np.isnan(other)
    return (same | both_nan) & (_mask(pc.is_null(old)) == _mask(pc.is_null(new)))  # type: ignore[no-any-return]


def _equal_texts(old: pa.ChunkedArray, new: pa.ChunkedArray) -> _Rows:
    """Compare what Arrow cannot compare by its text, which tells apart all values of one type."""
    texts = [[*map(repr, values_of(column))] for column in (old, new)]
    return np.array([one == other for one, other in zip(*texts, strict=True)], np.bool_)


def _mask(column: pa.ChunkedArray) -> _Rows:
    mask: _Rows = column.to_numpy().astype(np.bool_)
    return mask
