"""The worker's side of a snapshot: writes the files of one subtask."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from itertools import chain, groupby
from typing import Any

import pyarrow as pa

from keygroups.codec import codecs_used
from keygroups.errors import UnstorableValue
from keygroups.names import in_step
from keygroups.ranges import KeyGroupRange
from keygroups.representation import fields_repr
from keygroups.state import MemoryGroup, StateCut
from snapshots.filesystem import Folder
from snapshots.format import compute as pc
from snapshots.format.columns import (
    GATHERED_ROWS_MAX,
    PieceSize,
    RowEncoder,
    changed_keys,
    column_types_of,
    common_key_type,
    fitting_key_type,
    index_columns,
    key_types_of,
    keyed_schema,
)
from snapshots.format.expiry import unexpired
from snapshots.format.files import FileLabel, FileWriter, KeyedWriter
from snapshots.format.in_flight_columns import in_flight_table
from snapshots.format.in_flight_elements import key_groups_of_elements
from snapshots.format.layers import share_of
from snapshots.format.manifest import (
    Channel,
    DataFile,
    Manifest,
    OperatorStateInfo,
    StateInfo,
    encode_schema,
    manifest_name,
)
from snapshots.format.manifest_schema import FileKind
from snapshots.format.operator_state import OPERATOR_STATE_SCHEMA, digest_of, operator_state_table
from snapshots.format.parquet import KEY_GROUP, ParquetEncoder
from snapshots.format.schemas import state_info
from snapshots.format.steps import files_in_step, states_in_step
from snapshots.format.subtask import NO_KEY_GROUP, SubtaskSnapshot
from snapshots.restore.reader import KeyedReader, Span, StateReader, in_schema, merge, runs, stored_key_type

DELTAS_MAX = 8
"""A key group has at most this many deltas on its base; the next delta folds them into itself."""

DELTA_SHARE_MAX = 0.5
"""A state is written as a whole once its deltas have more than this share of the base's rows."""

KEYS_LOOKED_AT = 1000
"""The type of the key column is guessed from this many keys of each key group. If a later key has another type, the
file is started again."""

_IN_FLIGHT_ROW_GROUP_ROWS = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class SubtaskHandle:
    """What a worker reports to the coordinator: everything that the commit needs. Small and picklable.

    The states and files of a step of a job have the names that they have in the manifest.
    """

    subtask_index: int
    parallelism: int
    max_parallelism: int
    hash: str
    key_groups: KeyGroupRange
    parent_id: str | None
    states: tuple[StateInfo, ...]
    codecs: dict[str, frozenset[str]]
    operator_states: tuple[OperatorStateInfo, ...]
    files: tuple[DataFile, ...]
    channel: Channel
    in_flight_count: int
    output_schema: str | None = None
    copies: dict[str, str] = field(default_factory=dict)
    """For each broadcast operator state a digest of its items, by which the commit compares the copies."""
    step: str | None = None
    lineage: str | None = None

    __repr__ = fields_repr


def write_subtask(
    folder: Folder,
    attempt_id: str,
    snapshot: SubtaskSnapshot,
    parent: Manifest | None,
    outputs: pa.Table | None = None,
    step: str | None = None,
) -> SubtaskHandle:
    """Write one subtask's files under names that no other attempt uses.

    With `step`, the subtask is of this step of a job, and the parent is what the job's parent says about the step.
    """
    states = tuple(
        state_info(cut.descriptor, None if parent is None else parent.state(cut.descriptor.name))
        for cut in snapshot.states
    )
    with FileWriter(folder, attempt_id if step is None else f"{attempt_id}.{step}") as files:
        writer = _SubtaskWriter(folder, files, snapshot, parent)
        codecs = writer.write_keyed(states)
        writer.write_others(outputs)
        stored = files.stored()
    handle = SubtaskHandle(
        subtask_index=snapshot.subtask_index,
        parallelism=snapshot.parallelism,
        max_parallelism=snapshot.max_parallelism,
        hash=snapshot.hash,
        key_groups=snapshot.key_groups,
        parent_id=None if parent is None else parent.snapshot_id,
        states=states,
        codecs=codecs,
        operator_states=tuple(OperatorStateInfo(state.name, state.mode) for state in snapshot.operator_states),
        files=stored,
        channel=_channel(snapshot),
        in_flight_count=len(snapshot.in_flight),
        output_schema=None if outputs is None else encode_schema(outputs.schema),
        copies={state.name: digest_of(state) for state in snapshot.operator_states if state.mode == "broadcast"},
        lineage=snapshot.lineage,
    )
    return handle if step is None else _in_step(step, handle)


def _in_step(step: str, handle: SubtaskHandle) -> SubtaskHandle:
    """Return a handle with the names that states and files have in the manifest of a job."""
    return replace(
        handle,
        states=states_in_step(step, handle.states),
        codecs={in_step(step, name): used for name, used in handle.codecs.items()},
        operator_states=states_in_step(step, handle.operator_states),
        files=files_in_step(step, handle.files),
        channel=replace(handle.channel, step=step),
        copies={in_step(step, name): digest for name, digest in handle.copies.items()},
        step=step,
    )


class _Plan(Enum):
    WHOLE = auto()
    DELTA = auto()
    FOLDED_DELTA = auto()
    NOTHING = auto()


@dataclass(frozen=True, slots=True)
class _SubtaskWriter:
    folder: Folder
    files: FileWriter
    snapshot: SubtaskSnapshot
    parent: Manifest | None

    def write_keyed(self, states: Iterable[StateInfo]) -> dict[str, frozenset[str]]:
        """Write the files of each state, and return by state the codecs that its range may contain from now on."""
        codecs: dict[str, frozenset[str]] = {}
        for cut, info in zip(self.snapshot.states, states, strict=True):
            plan = self._plan(cut, info)
            with codecs_used() as used:
                is_encoded = self._write(plan, cut, info)
            # Content that is not encoded here keeps its stored codecs.
            codecs[info.name] = frozenset(used if is_encoded else used.union(info.codecs))
        return codecs

    def _write(self, plan: _Plan, cut: StateCut, info: StateInfo) -> bool:
        """Write a state as planned; returns whether its whole content was encoded."""
        match plan:
            case _Plan.WHOLE:
                return self._write_whole(cut, info)
            case _Plan.DELTA:
                self._write_delta(cut, info, [(self.snapshot.key_groups, [])])
            case _Plan.FOLDED_DELTA:
                self._write_delta(cut, info, self._deltas(info.name))
        return False

    def write_others(self, outputs: pa.Table | None) -> None:
        """Write the in-flight elements, the operator state and the outputs, if there are any."""
        snapshot, owned = self.snapshot, self.snapshot.key_groups
        if snapshot.in_flight:
            encoder = encoded_in_flight(in_flight_table(snapshot.in_flight, snapshot.element_types))
            name = f"in_flight-{owned.start}-{owned.end}"
            key_groups = key_groups_of_elements(snapshot.in_flight, owned)
            self.files.write(self._label("in_flight"), name, key_groups, encoder)
        for state in snapshot.operator_states:
            if state.items:
                encoder = ParquetEncoder(OPERATOR_STATE_SCHEMA)
                encoder.write(operator_state_table(state))
                name = f"operator-{state.name}-{snapshot.subtask_index}"
                self.files.write(self._label("operator", state.name), name, owned, encoder)
        if outputs is not None and outputs.num_rows:
            encoder = ParquetEncoder(outputs.schema)
            encoder.write(outputs)
            self.files.write(self._label("output"), f"output-{snapshot.subtask_index}", owned, encoder)

    def _plan(self, cut: StateCut, info: StateInfo) -> _Plan:
        """Decide how to write a state: as little as is certain to be correct, in a form that is quick to read."""
        parent, changed = self.parent, cut.changed
        if parent is None or changed is None or not self._is_known(cut) or parent.state(info.name) != info:
            return _Plan.WHOLE
        if any(keys is None for keys in changed.values()):
            return _Plan.WHOLE
        owned = self.snapshot.key_groups
        rows = sum(len(keys) for keys in changed.values() if keys is not None)
        deltas = self._overlapping("delta", info.name)
        base_rows = sum(file.rows * share_of(file, owned) for file in self._overlapping("keyed", info.name))
        delta_rows = sum(file.rows * share_of(file, owned) for file in deltas)
        if rows == 0:
            return _Plan.NOTHING
        if rows + delta_rows > DELTA_SHARE_MAX * base_rows:
            return _Plan.WHOLE
        depth = max(len(layers) for _, layers in self._deltas(info.name))
        return _Plan.FOLDED_DELTA if depth >= DELTAS_MAX else _Plan.DELTA

    def _is_known(self, cut: StateCut) -> bool:
        """Return whether the parent holds, for this subtask's range, exactly the content to which the changes apply."""
        assert self.parent is not None
        known = {channel.cut_id for channel in self.parent.channels if channel.key_groups == self.snapshot.key_groups}
        return cut.since == self.parent.snapshot_id or cut.since in known

    def _write_whole(self, cut: StateCut, info: StateInfo) -> bool:
        columns, now = index_columns(info.kind), self.snapshot.wall_time
        types = [common_key_type(_likely_key_types(cut, column)) for column in columns]
        schema = keyed_schema(info, *types)
        writer = KeyedWriter(self.files, self._label("keyed", info.name), schema, self.snapshot.key_groups)
        key_groups = sorted(cut.groups)
        is_encoded = True
        while True:
            try:
                for key_group, tables, are_encoded in _whole(cut, key_groups, RowEncoder(cut, schema, now), now):
                    writer.add(key_group, tables)
                    is_encoded = is_encoded and are_encoded
                break
            except UnstorableValue:
                fitting = [fitting_key_type(*one, cut, key_groups) for one in zip(columns, types, strict=True)]
                if fitting == types:
                    raise
                types, schema = fitting, keyed_schema(info, *fitting)
                key_groups = key_groups[bisect_left(key_groups, writer.begin_again(schema)) :]
        writer.finish()
        return is_encoded

    def _write_delta(self, cut: StateCut, info: StateInfo, older: Sequence[Span]) -> None:
        """Write the changes as a delta; it replaces the given older deltas of each span by including them."""
        assert cut.changed is not None
        changed = {key_group: keys for key_group, keys in cut.changed.items() if keys}
        folded = {layer for _, layers in older for layer in layers}
        types = []
        for column in index_columns(info.kind):
            found = {stored_key_type(layer, column) for layer in folded}
            for keys in changed.values():
                found |= key_types_of(changed_keys(keys, column, info.kind))
            types.append(common_key_type(found))
        schema = keyed_schema(info, *types, delta=True)
        encoder = RowEncoder(cut, schema, self.snapshot.wall_time)
        label = self._label("delta", info.name, folds=bool(folded))
        writer = KeyedWriter(self.files, label, schema, self.snapshot.key_groups)
        changes = _ChangedRows(cut, changed)
        for span, layers in older:
            rows = changes.folded(encoder, span, layers) if layers else changes.encoded(encoder, span)
            for key_group, tables in rows:
                writer.add(key_group, tables)
        writer.finish()

    def _deltas(self, state: str) -> Sequence[Span]:
        """Return the deltas of the parent in each span of key groups."""
        assert self.parent is not None
        reader = StateReader(self.folder, self.parent.files_of("keyed", "delta", state=state), self._parent_path)
        return [(span, layers[1:]) for span, layers in reader.spans(self.snapshot.key_groups)]

    @property
    def _parent_path(self) -> str:
        assert self.parent is not None
        return self.folder.path(manifest_name(self.parent.version))

    def _overlapping(self, kind: FileKind, state: str) -> list[DataFile]:
        assert self.parent is not None
        owned = self.snapshot.key_groups
        return [file for file in self.parent.files_of(kind, state=state) if file.key_groups.intersection(owned)]

    def _label(self, kind: FileKind, state: str | None = None, *, folds: bool = False) -> FileLabel:
        parent = self.parent
        return FileLabel(
            kind=kind,
            state=state,
            subtask=self.snapshot.subtask_index,
            version=1 if parent is None else parent.version + 1,
            parent_id=parent.snapshot_id if parent is not None and kind == "delta" else None,
            folds=folds,
        )


def _whole(
    cut: StateCut, key_groups: Iterable[int], encoder: RowEncoder, now: int
) -> Iterator[tuple[int, Iterable[pa.Table], bool]]:
    """Yield the tables of some key groups, the first of these, and whether the tables were encoded, not read."""
    contents = map(cut.groups.__getitem__, key_groups)
    found = ((key_group, group, group.stored()) for key_group, group in zip(key_groups, contents, strict=True))
    for is_stored, run in groupby(found, lambda one: one[2] is not None):
        if not is_stored:
            for key_group, tables in encoder.pieces((one, group, None) for one, group, _ in run):
                yield key_group, tables, True
            continue
        for key_group, _, stored in run:
            if stored is not None and stored.num_rows:  # often there are more key groups than keys
                yield key_group, [in_schema(unexpired(stored, now), encoder.schema)], False


class _ChangedRows:
    """The changed keys or entries of a cut by key group, as rows of a delta."""

    def __init__(self, cut: StateCut, changed: Mapping[int, Collection[Any]]) -> None:
        self._groups = cut.groups
        self._changed = changed
        self._ordered = sorted(changed)
        self._nothing = MemoryGroup({}, cut.descriptor.kind)

    def encoded(self, encoder: RowEncoder, span: KeyGroupRange) -> Iterator[tuple[int, Iterator[pa.Table]]]:
        """Yield the changes in a span, as `RowEncoder.pieces` does."""
        start, end = bisect_left(self._ordered, span.start), bisect_right(self._ordered, span.end)
        return encoder.pieces(
            (one, self._groups.get(one, self._nothing), self._changed[one]) for one in self._ordered[start:end]
        )

    def folded(
        self, encoder: RowEncoder, span: KeyGroupRange, older: Sequence[KeyedReader]
    ) -> Iterator[tuple[int, list[pa.Table]]]:
        """Yield the changes in a span on top of its older deltas."""
        for run, layers in runs(span, older, PieceSize(GATHERED_ROWS_MAX), self._changed):
            new = chain.from_iterable(tables for _, tables in self.encoded(encoder, run))
            rows = merge([*layers, pa.concat_tables([encoder.schema.empty_table(), *new])], keep_deleted=True)
            yield run.start, [in_schema(rows, encoder.schema)]


def _likely_key_types(cut: StateCut, column: str) -> set[pa.DataType | None]:
    """Return the types of the keys: of all keys in files or on disk, and of a few of each key group in memory."""
    kinds = set[type]()
    for group in cut.groups.values():
        kinds |= set(group.kinds(column, max(KEYS_LOOKED_AT // len(cut.groups), 1)))
    return column_types_of(kinds)


def encoded_in_flight(table: pa.Table) -> ParquetEncoder:
    """Encode the elements of a channel, ordered by key group."""
    encoder = ParquetEncoder(table.schema)
    for row_group in _in_flight_row_groups(table):
        encoder.write(row_group)
    return encoder


def _in_flight_row_groups(table: pa.Table) -> Iterator[pa.Table]:
    """Separate elements without a key group: after a rescale, other subtasks read them than the elements with one."""
    keyless = pc.sum(pc.equal(table.column(KEY_GROUP), NO_KEY_GROUP)).as_py()
    for part in (table.slice(0, keyless), table.slice(keyless)):
        for offset in range(0, part.num_rows, _IN_FLIGHT_ROW_GROUP_ROWS):
            yield part.slice(offset, _IN_FLIGHT_ROW_GROUP_ROWS)


def _channel(snapshot: SubtaskSnapshot) -> Channel:
    assert all(element.channel == snapshot.subtask_index for element in snapshot.in_flight), "a queue is one channel"
    return Channel(
        subtask=snapshot.subtask_index,
        key_groups=snapshot.key_groups,
        watermark=snapshot.watermark,
        cut_id=snapshot.cut_id,
        keyless=sum(element.key_group == NO_KEY_GROUP and not element.is_watermark for element in snapshot.in_flight),
    )
