"""Changes of a snapshot by hand: states that are written from rows, transformed, renamed or dropped."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import replace
from itertools import chain
from typing import Any, Self, TypeAlias

import pyarrow as pa

from keygroups.codec import codecs_used
from keygroups.descriptors import StateDescriptor, ValueState
from keygroups.errors import ConfigError
from keygroups.state import identity_of, original_of
from snapshots.commit import next_manifest, put_manifest
from snapshots.features import features_of
from snapshots.filesystem import Folder
from snapshots.manifest import DataFile, Manifest, StateInfo
from snapshots.pending import check_covered
from snapshots.reader import decode_column
from snapshots.rows import RowEncoding, Rows
from snapshots.schemas import ENTRY_COLUMNS, state_info
from snapshots.snapshot import Snapshot
from snapshots.state_files import write_state
from snapshots.streaming import StateStream, all_key_groups

_Change: TypeAlias = Callable[[Iterator[pa.Table], RowEncoding], Iterator[pa.Table]]


class Editor:
    """Changes the keyed states of a snapshot, and commits the result as the next version. One thread uses it.

    It is made by `SnapshotStore.edit`. Each method does its work at once, in bounded memory, and writes new files where
    rows change; nothing refers to them before `commit`, and what is not committed is garbage. Operators must be
    stopped: one that runs knows nothing of the edit. Where it holds a claim, its next commit is refused
    (`WriterFenced`); otherwise it writes its own state again, over the edit.

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

    @property
    def state_names(self) -> tuple[str, ...]:
        """The states as they are by now."""
        return tuple(info.name for info in self._draft.states)

    def drop(self, name: str) -> Self:
        """Drop a state with all its rows.

        Raises
        ------
        ConfigError
            There is no such state.
        """
        self._named(name)
        return self._with(name, None, ())

    def rename(self, old: str, new: str) -> Self:
        """Rename a state; its files stay.

        Raises
        ------
        ConfigError
            There is no such state, or one with the new name, or that cannot be a name.
        """
        info = self._named(old)
        if new in self.state_names:
            raise ConfigError("new", new, "there is a state of this name: drop or rename it first")
        files = [replace(file, state=new) for file in self._draft.files if file.state == old and _is_keyed(file)]
        return self._with(old, replace(info, name=ValueState(new).name), files)

    def put(self, descriptor: StateDescriptor, rows: Rows) -> Self:
        """Add a state, or replace all that it holds.

        Parameters
        ----------
        descriptor : StateDescriptor
            How it is declared.
        rows : pyarrow.Table, RecordBatch or RecordBatchReader, or iterable of (key, value)
            What it is to hold, see `SnapshotStore.bootstrap`.

        Raises
        ------
        ConfigError, NullKey, UnsupportedKey, UnstorableValue, DuplicateKey
            A row does not fit.
        """
        info = state_info(descriptor, self._draft.state(descriptor.name))
        return self._written(info, self._encoding(info).tables(rows))

    def transform(self, state: str | StateDescriptor, function: Callable[[pa.Table], pa.Table]) -> Self:
        """Put the rows of a state through a function of Arrow tables.

        Parameters
        ----------
        state : str or StateDescriptor
            Its name; or what it is to be declared as, if its type or kind changes.
        function : callable
            Gets all rows of a key group, as `Snapshot.to_arrow` has them, and returns rows with the same columns;
            fewer, more, and with other keys, too. It is called once for each key group that has rows.

        Raises
        ------
        ConfigError, NullKey, UnsupportedKey, UnstorableValue, DuplicateKey
            There is no such state, or a row that is returned does not fit.
        """

        def changed(tables: Iterator[pa.Table], encoding: RowEncoding) -> Iterator[pa.Table]:
            for table in tables:
                yield from encoding.tables(function(table))

        return self._rewritten(state, changed)

    def map_items(
        self, state: str | StateDescriptor, function: Callable[[Any, Any], Iterable[tuple[Hashable, Any]]]
    ) -> Self:
        """Put each key of a state through a function of Python values.

        Parameters
        ----------
        state : str or StateDescriptor
            Its name; or what it is to be declared as, if its type or kind changes.
        function : callable
            Gets a key and its value (of a list state a list, of a map state a dict) and returns (key, value) pairs:
            none drops the key.

        Raises
        ------
        ConfigError, NullKey, UnsupportedKey, UnstorableValue, DuplicateKey
            There is no such state, or a pair does not fit.
        """

        def changed(tables: Iterator[pa.Table], encoding: RowEncoding) -> Iterator[pa.Table]:
            items = (item for table in tables for item in _items_of(table))
            return encoding.tables(chain.from_iterable(function(key, value) for key, value in items))

        return self._rewritten(state, changed)

    def commit(self) -> Snapshot:
        """Commit the snapshot as it is by now.

        Raises
        ------
        CommitConflict
            Another writer committed meanwhile; nothing of the edit counts.
        CommitOutcomeUnknown
            The storage failed and could not be read back.
        """
        draft = self._draft
        check_covered(draft.files, self.state_names, draft.max_parallelism)
        manifest = next_manifest(
            self._parent,
            "edit",
            states=draft.states,
            files=draft.files,
            # What was cut before is not what the files hold now, so it cannot be the base of a delta.
            channels=tuple(replace(channel, cut_id=None) for channel in draft.channels),
            required_features=features_of(draft.files, draft.states),
        )
        put_manifest(self._folder, manifest)
        return Snapshot(self._folder, manifest)

    def _rewritten(self, state: str | StateDescriptor, change: _Change) -> Self:
        before = self._named(state if isinstance(state, str) else state.name)
        info = before if isinstance(state, str) else state_info(state, before)
        stream = StateStream.of(self._folder, self._draft, before.name)
        return self._written(info, change(stream.groups(all_key_groups(self._draft)), self._encoding(info)))

    def _written(self, info: StateInfo, tables: Iterator[pa.Table]) -> Self:
        with codecs_used() as codecs:
            files = write_state(self._folder, self._draft, info, tables)
        return self._with(info.name, replace(info, codecs=tuple(sorted(codecs))), files)

    def _encoding(self, info: StateInfo) -> RowEncoding:
        return RowEncoding(info, self._draft.max_parallelism, self._draft.hash)

    def _named(self, name: str) -> StateInfo:
        info = self._draft.state(name)
        if info is None:
            raise ConfigError("state", name, f"the snapshot has the states {list(self.state_names)}")
        return info

    def _with(self, name: str, info: StateInfo | None, files: Iterable[DataFile]) -> Self:
        """Put a state and its files in the place of another one, or at the end."""
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
    """Return the keys of a key group with their values, as their users know them."""
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
