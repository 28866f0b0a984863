"""Edits a snapshot by hand: writes states from rows, and transforms, renames or drops states."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import chain
from typing import Any, Self, TypeAlias, get_args

import pyarrow as pa

from keygroups.arguments import check_callable, check_elements, check_instance, pairs_in
from keygroups.codec import codecs_used
from keygroups.descriptors import OperatorMapState, OperatorStateDescriptor, StateDescriptor
from keygroups.errors import ConfigError
from keygroups.names import LINEAGE_NAME, OPERATOR_STATE_NAME, STATE_NAME, in_step, split_step
from keygroups.operator_state import split
from keygroups.representation import representation
from keygroups.state import OperatorStates, identity_of, original_of
from snapshots.commit.completeness import check_covered
from snapshots.commit.manifest_creation import next_manifest, put_manifest
from snapshots.filesystem import Folder
from snapshots.format.files import FileLabel, FileWriter
from snapshots.format.manifest import DataFile, Manifest, OperatorStateInfo, StateInfo, features_of
from snapshots.format.operator_state import OPERATOR_STATE_SCHEMA, operator_state_table
from snapshots.format.parquet import ParquetEncoder
from snapshots.format.schemas import ENTRY_COLUMNS, check_descriptor, state_info
from snapshots.format.steps import check_step, files_in_step
from snapshots.format.subtask import OperatorStateCut
from snapshots.lineage import adopt_lineage, new_lineage
from snapshots.restore.reader import decode_column
from snapshots.restore.snapshot import Snapshot
from snapshots.restore.streaming import StateStream, all_key_groups
from snapshots.upkeep.state_files import write_state
from snapshots.upkeep.user_rows import Rows, UserRowEncoding

_ITEMS_OF = "pass the declaration of a state without a key, such as OperatorListState('offsets')"

_Change: TypeAlias = Callable[[Iterator[pa.Table], UserRowEncoding], Iterator[pa.Table]]


class Editor:
    """Changes the states of a snapshot, and commits the result as the next version. For use by one thread.

    `SnapshotStore.edit` creates one. Each method does its work at once, in bounded memory, and writes new files where
    rows change. Nothing refers to these files before `commit`; without a commit they are garbage. Stop the operator
    first, because a running operator does not see the edit. If it holds a claim, its next commit is refused
    (`WriterFenced`); otherwise it overwrites the edit with its own state.

    Parameters
    ----------
    folder : Folder
        The operator's folder.
    parent : Manifest
        The snapshot to change.

    Examples
    --------
    >>> import pyarrow.compute as pc
    >>> def doubled(rows):
    ...     return rows.set_column(rows.schema.get_field_index("value"), "value", pc.multiply(rows["value"], 2))
    >>> store.edit().transform("visits", doubled).rename("visits", "doubled").drop("old").commit()  # doctest: +SKIP
    """

    def __init__(self, folder: Folder, parent: Manifest) -> None:
        self._folder = folder
        self._parent = parent
        self._draft = parent

    def __repr__(self) -> str:
        facts = {"version": self._parent.version, "uri": self._folder.uri, "state_names": self.state_names}
        return representation(self, facts)

    @property
    def state_names(self) -> tuple[str, ...]:
        """The names of the keyed states, with the changes so far."""
        return tuple(info.name for info in self._draft.states)

    @property
    def operator_state_names(self) -> tuple[str, ...]:
        """The names of the states without a key, with the changes so far."""
        return tuple(info.name for info in self._draft.operator_states)

    def drop(self, name: str) -> Self:
        """Drop a state with all its rows.

        Raises
        ------
        ConfigError
            There is no such state.
        """
        if self._is_operator_state(name):
            return self._with_items(name, None, ())
        self._named(name)
        return self._with(name, None, ())

    def rename(self, old: str, new: str) -> Self:
        """Rename a state, with or without a key; its files stay the same. In a job, both names are `step.state`.

        Raises
        ------
        ConfigError
            There is no such state, the new name is taken, or it is not a valid name.
        WrongStep
            The new name has no step of the job.
        """
        items = self._draft.operator_state(old) if self._is_operator_state(old) else None
        info = self._named(old) if items is None else None
        step, name = split_step(new) if self._draft.step_names else (None, new)
        check_step(self._draft, step)
        (OPERATOR_STATE_NAME if info is None else STATE_NAME).check("new", name)
        if new in (*self.state_names, *self.operator_state_names):
            raise ConfigError("new", new, "there is a state of this name: drop or rename it first")
        if items is not None:
            renamed = [replace(file, state=new) for file in self._draft.files_of("operator", state=old)]
            return self._with_items(old, replace(items, name=new), renamed)
        assert info is not None, "a state has a key or has none"
        files = [replace(file, state=new) for file in self._draft.files if file.state == old and _is_keyed(file)]
        return self._with(old, replace(info, name=new), files)

    def put(self, descriptor: StateDescriptor, rows: Rows, *, step: str | None = None) -> Self:
        """Add a state, or replace its whole content.

        Parameters
        ----------
        descriptor : StateDescriptor
            The declaration of the state.
        rows : pyarrow.Table, RecordBatch or RecordBatchReader, or dict or iterable of (key, value)
            The new content, see `SnapshotStore.bootstrap`.
        step : str, optional
            In a job, the step of the state.

        Raises
        ------
        WrongStep
            There is no such step.
        ConfigError, NullKey, UnsupportedKey, UnstorableValue, DuplicateKey
            A row does not fit the state.
        """
        check_descriptor("descriptor", descriptor)
        info = self._declared(descriptor, step)
        if self._is_operator_state(info.name):
            reason = "an operator state has this name: drop or rename it first"
            raise ConfigError("descriptor", descriptor.name, reason)
        return self._written(info, self._encoding(info).tables(rows))

    def put_items(
        self,
        descriptor: OperatorStateDescriptor,
        items: Iterable[Any] | Mapping[Any, Any],
        *,
        step: str | None = None,
    ) -> Self:
        """Add a state without a key, or replace its whole content.

        Parameters
        ----------
        descriptor : OperatorListState or OperatorMapState
            The declaration of the state.
        items : iterable or mapping
            The items, which are distributed evenly to the subtasks; or the entries of the map.
        step : str, optional
            In a job, the step of the state.

        Raises
        ------
        WrongStep
            There is no such step.
        ConfigError, UnstorableValue
            A keyed state has this name, or an item does not fit the state.

        Examples
        --------
        >>> from keygroups import OperatorListState
        >>> offsets = OperatorListState("offsets")
        >>> store.edit().put_items(offsets, [("topic-0", 17)]).commit()  # doctest: +SKIP
        """
        check_instance("descriptor", descriptor, get_args(OperatorStateDescriptor), reason=_ITEMS_OF)
        name = self._in_step(descriptor.name, step)
        if name in self.state_names:
            raise ConfigError("descriptor", descriptor.name, "a keyed state has this name: drop or rename it first")
        files = write_items(self._folder, self._parent, descriptor, items, step)
        return self._with_items(name, OperatorStateInfo(name, descriptor.mode), files)

    def transform(
        self, state: str | StateDescriptor, function: Callable[[pa.Table], pa.Table], *, step: str | None = None
    ) -> Self:
        """Transform the rows of a state with a function of Arrow tables.

        Parameters
        ----------
        state : str or StateDescriptor
            The name of the state; or its new declaration, if its type or kind changes.
        function : callable
            Gets all rows of a key group, with the columns of `Snapshot.to_arrow`, and returns rows with the same
            columns: any number of them, also with other keys. It is called once for each key group that has rows.
        step : str, optional
            In a job, the step of the state, unless it is given as `step.state`.

        Raises
        ------
        WrongStep
            There is no such step.
        ConfigError, NullKey, UnsupportedKey, UnstorableValue, DuplicateKey
            There is no such state, or a returned row does not fit.
        """
        check_callable("function", function, 1, reason="it gets the rows of a key group")

        def changed(tables: Iterator[pa.Table], encoding: UserRowEncoding) -> Iterator[pa.Table]:
            for table in tables:
                yield from encoding.tables(function(table))

        return self._rewritten(state, step, changed)

    def map_items(
        self,
        state: str | StateDescriptor,
        function: Callable[[Any, Any], Iterable[tuple[Hashable, Any]]],
        *,
        step: str | None = None,
    ) -> Self:
        """Transform each key of a state with a function of Python values.

        Parameters
        ----------
        state : str or StateDescriptor
            The name of the state; or its new declaration, if its type or kind changes.
        function : callable
            Gets a key and its value (a list for a list state, a dict for a map state) and returns (key, value) pairs;
            no pairs drop the key.
        step : str, optional
            In a job, the step of the state, unless it is given as `step.state`.

        Raises
        ------
        WrongStep
            There is no such step.
        ConfigError, NullKey, UnsupportedKey, UnstorableValue, DuplicateKey
            There is no such state, or a pair does not fit.
        """
        check_callable("function", function, 2, reason="it gets a key and its value", iterated=True)

        def changed(tables: Iterator[pa.Table], encoding: UserRowEncoding) -> Iterator[pa.Table]:
            items = (item for table in tables for item in _items_of(table))
            return encoding.tables(
                chain.from_iterable(pairs_in("function", function(key, value)) for key, value in items)
            )

        return self._rewritten(state, step, changed)

    def set_lineage(self, lineage: str | None = None) -> Self:
        """Change the lineage, the first part of all idempotency keys: services recognise no earlier call any more.

        Parameters
        ----------
        lineage : str, optional
            The `idempotency_namespace` with which the operator will run; by default a new random lineage, such as for
            a copy of the folder that is to run beside the original.

        Raises
        ------
        ConfigError
            The name may be no lineage.
        """
        if lineage is not None:
            LINEAGE_NAME.check("lineage", lineage)
        self._draft = replace(self._draft, lineage=new_lineage() if lineage is None else lineage)
        return self

    def commit(self) -> Snapshot:
        """Commit the changes so far as the next version.

        Raises
        ------
        CommitConflict
            Another writer committed in the meantime; the edit has no effect.
        CommitOutcomeUnknown
            The storage failed and could not be read back.
        """
        draft = self._draft
        check_covered(draft.files, self.state_names, draft.max_parallelism)
        manifest = next_manifest(
            self._parent,
            "edit",
            lineage=draft.lineage,
            states=draft.states,
            operator_states=draft.operator_states,
            files=draft.files,
            # Earlier cuts no longer match the content of the files, so no delta can be based on them.
            channels=tuple(replace(channel, cut_id=None) for channel in draft.channels),
            required_features=features_of(draft.files, draft.states, draft.channels),
        )
        committed = Snapshot(self._folder, put_manifest(self._folder, manifest))
        adopt_lineage(self._folder, draft.lineage)
        return committed

    def _rewritten(self, state: str | StateDescriptor, step: str | None, change: _Change) -> Self:
        if isinstance(state, str):
            before = info = self._named(state if step is None else self._in_step(state, step))
        else:
            check_descriptor("state", state)
            before = self._named(self._in_step(state.name, step))
            info = self._declared(state, step)
        stream = StateStream.of(self._folder, self._draft, before.name)
        return self._written(info, change(stream.groups(all_key_groups(self._draft)), self._encoding(info)))

    def _written(self, info: StateInfo, tables: Iterator[pa.Table]) -> Self:
        with codecs_used() as codecs:
            files = write_state(self._folder, self._draft, info, tables)
        return self._with(info.name, replace(info, codecs=tuple(sorted(codecs))), files)

    def _declared(self, descriptor: StateDescriptor, step: str | None) -> StateInfo:
        name = self._in_step(descriptor.name, step)
        return replace(state_info(descriptor, self._draft.state(name)), name=name)

    def _in_step(self, name: str, step: str | None) -> str:
        check_step(self._draft, step)
        return name if step is None else in_step(step, name)

    def _encoding(self, info: StateInfo) -> UserRowEncoding:
        return UserRowEncoding(info, self._draft.max_parallelism, self._draft.hash)

    def _named(self, name: str) -> StateInfo:
        info = self._draft.state(name)
        if info is None:
            names = [*self.state_names, *self.operator_state_names]
            raise ConfigError("state", name, f"the snapshot has the states {names}")
        return info

    def _is_operator_state(self, name: str) -> bool:
        return name in self.operator_state_names and name not in self.state_names

    def _with_items(self, name: str, info: OperatorStateInfo | None, files: Iterable[DataFile]) -> Self:
        """Replace an operator state and its files by another one, or add it at the end."""
        states = {one.name: one for one in self._draft.operator_states}
        if info is None:
            del states[name]
        else:
            states[name] = info
        others = (file for file in self._draft.files if file.state != name)
        self._draft = replace(self._draft, operator_states=tuple(states.values()), files=(*others, *files))
        return self

    def _with(self, name: str, info: StateInfo | None, files: Iterable[DataFile]) -> Self:
        """Replace a state and its files by another one, or add it at the end."""
        states = {one.name: one for one in self._draft.states}
        if info is None:
            del states[name]
        else:
            states[name] = info
        others = (file for file in self._draft.files if file.state != name or not _is_keyed(file))
        self._draft = replace(self._draft, states=tuple(states.values()), files=(*others, *files))
        return self


def _is_keyed(file: DataFile) -> bool:
    return file.kind in {"keyed", "delta"}


def _items_of(table: pa.Table) -> Iterator[tuple[Any, Any]]:
    """Return the keys of a key group with their values, in the form that users see."""
    keys, values = decode_column(table, "key"), decode_column(table, "value")
    entry = next((name for name in ENTRY_COLUMNS.values() if name in table.schema.names), None)
    if entry is None:
        yield from zip(keys, values, strict=True)
        return
    held: dict[Hashable, dict[Any, Any]] = {}
    for key, one, value in zip(keys, decode_column(table, entry), values, strict=True):
        held.setdefault(identity_of(key), {})[one] = value
    for identity, entries in held.items():
        is_list = entry == "position"
        yield original_of(identity), [entries[at] for at in sorted(entries)] if is_list else entries


def write_items(
    folder: Folder,
    manifest: Manifest,
    descriptor: OperatorStateDescriptor,
    items: Iterable[Any] | Mapping[Any, Any],
    step: str | None,
) -> tuple[DataFile, ...]:
    """Deal items out to the subtasks of a snapshot, and write one file for each subtask that gets any.

    Raises
    ------
    UnstorableValue
        An item cannot be stored, or does not fit the declared type.
    """
    states = OperatorStates((descriptor,))
    if isinstance(descriptor, OperatorMapState):
        items = pairs_in("items", items)
    else:
        check_elements("items", items)
    states.handle(descriptor).update(items)
    checked = states.cut("an edit")[descriptor.name]
    channels = [channel for channel in manifest.channels if channel.step == step]
    shares = [list(checked)] * len(channels)
    if descriptor.mode != "broadcast":
        shares = split({descriptor.name: [checked]}, len(channels))[descriptor.name]
    with FileWriter(folder, uuid.uuid4().hex) as files:
        for channel, share in zip(channels, shares, strict=True):
            if share:
                cut = OperatorStateCut(descriptor.name, descriptor.mode, tuple(share))
                encoder = ParquetEncoder(OPERATOR_STATE_SCHEMA)
                encoder.write(operator_state_table(cut))
                label = FileLabel(
                    kind="operator", state=cut.name, subtask=channel.subtask, version=manifest.version + 1
                )
                files.write(label, f"operator-{cut.name}-{channel.subtask}", channel.key_groups, encoder)
        stored = files.stored()
    return stored if step is None else files_in_step(step, stored)
