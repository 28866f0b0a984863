"""The rewrite of a snapshot: moves every row to its key group under another max parallelism or hash.

An engine reads the old files and writes the new ones. The work for one file, and for one range of new key groups, is
the same for all engines and is defined here. The old snapshot is not modified.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from keygroups.errors import ConfigError, UnsupportedKey
from keygroups.hashing import key_group_of, key_groups_of, key_hasher
from keygroups.ranges import KeyGroupRange, check_parallelism, range_of
from snapshots.commit.manifest_creation import next_manifest, put_manifest
from snapshots.commit.part_writer import encoded_in_flight
from snapshots.errors import IncompleteSnapshot
from snapshots.filesystem import Folder
from snapshots.format import compute as pc
from snapshots.format.columns import DELETED, common_key_type, index_columns, is_packed, keyed_schema
from snapshots.format.files import FileLabel, FileWriter, KeyedWriter
from snapshots.format.in_flight_columns import common_schema, decoded, in_common_schema
from snapshots.format.manifest import DataFile, Manifest, StateInfo, features_of, manifest_name
from snapshots.format.parquet import KEY_GROUP, ParquetReader, damage_named
from snapshots.format.subtask import NO_KEY_GROUP
from snapshots.restore.reader import KeyedReader, StateReader, decode_column, in_schema, merge, stored_key_type
from snapshots.restore.snapshot import Snapshot
from snapshots.upkeep.buckets import by_key_group

LAYER = "layer"
"""The temporary column with the version of the snapshot that wrote a row; 0 for all base files."""

_LAYER = pa.field(LAYER, pa.int64(), False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The goal of a rewrite: parallelism, number of key groups, hash and version."""

    parallelism: int
    max_parallelism: int
    hash: str
    version: int

    @classmethod
    def of(cls, parent: Manifest, parallelism: int, max_parallelism: int | None, hash_: str | None) -> Target:
        """Fill in unspecified values from a snapshot.

        Raises
        ------
        ConfigError
            The parallelism does not fit, or there is no such hash.
        """
        key_groups = parent.max_parallelism if max_parallelism is None else max_parallelism
        check_parallelism(parallelism, key_groups)
        hash_ = parent.hash if hash_ is None else hash_
        key_hasher(hash_)
        return cls(parallelism=parallelism, max_parallelism=key_groups, hash=hash_, version=parent.version + 1)

    def check_is_kept(self, parent: Manifest, next_step: str = "pass rewrite=True") -> None:
        """Check that no rewrite is required; `next_step` says how to ask for one.

        Raises
        ------
        ConfigError
            The snapshot has another max parallelism or hash.
        """
        for name in ("max_parallelism", "hash"):
            wanted, found = getattr(self, name), getattr(parent, name)
            if wanted != found:
                reason = f"the snapshot has {found!r}, and to change that every row is written again: {next_step}"
                raise ConfigError(name, wanted, reason)

    @property
    def key_groups(self) -> KeyGroupRange:
        """The range of all new key groups."""
        return KeyGroupRange(0, self.max_parallelism - 1)


@dataclass(frozen=True)
class StateRewrite:
    """How one keyed state is rewritten. Picklable.

    Attributes
    ----------
    folder : Folder
        The operator's folder.
    target : Target
        The goal of the rewrite.
    info : StateInfo
        The state.
    files : tuple of DataFile
        The files of the state.
    key_types : tuple of (pyarrow.DataType or None)
        The types of all keys and, for a map, of all map keys; None if they become msgpack.
    """

    folder: Folder
    target: Target
    info: StateInfo
    files: tuple[DataFile, ...]
    key_types: tuple[pa.DataType | None, ...]

    @classmethod
    def of(cls, folder: Folder, manifest: Manifest, info: StateInfo, target: Target) -> StateRewrite:
        """Read the footers of the state's files, and check that its layers are complete."""
        files = manifest.files_of("keyed", "delta", state=info.name)
        layers = StateReader(folder, files, folder.path(manifest_name(manifest.version)))
        layers.spans(KeyGroupRange(0, manifest.max_parallelism - 1))
        readers = [KeyedReader(ParquetReader(folder, file)) for file in files if file.rows]
        types = [{stored_key_type(reader, name) for reader in readers} for name in index_columns(info.kind)]
        return cls(folder, target, info, files, tuple(map(common_key_type, types)))

    @cached_property
    def _has_deltas(self) -> bool:
        return any(file.kind == "delta" for file in self.files)

    @cached_property
    def _row_schema(self) -> pa.Schema:
        schema = keyed_schema(self.info, *self.key_types, delta=self._has_deltas)
        return schema.append(_LAYER) if self._has_deltas else schema

    def rows(self, file: DataFile) -> Iterator[pa.Table]:
        """Yield the valid rows of a file in bounded pieces, with their new key groups."""
        layer = file.version if file.kind == "delta" else 0
        reader = KeyedReader(ParquetReader(self.folder, file))
        for table in reader.pieces(file.key_groups):
            with damage_named(reader.path, file.key_groups):
                keys = _keys_of(table)
            rekeyed = _with_key_groups(table, self._key_groups_of(keys))
            if self._has_deltas:
                if DELETED not in rekeyed.schema.names:
                    rekeyed = rekeyed.add_column(2, DELETED, pa.repeat(pa.scalar(False), len(rekeyed)))
                rekeyed = rekeyed.append_column(LAYER, pa.repeat(pa.scalar(layer, pa.int64()), len(rekeyed)))
            yield in_schema(rekeyed, self._row_schema)

    def write(
        self,
        files: FileWriter,
        tables: Iterable[pa.Table],
        key_groups: KeyGroupRange,
        subtask: int,
        wrote: Callable[[int], None] = lambda _: None,
    ) -> None:
        """Write the files of a range of key groups.

        Parameters
        ----------
        files : FileWriter
            Stores the files.
        tables : iterable of pyarrow.Table
            Tables of complete key groups in ascending order, as returned by `Buckets.take`.
        key_groups : KeyGroupRange
            The range.
        subtask : int
            The subtask in whose name the files are written.
        wrote : callable
            Called with the number of bytes of rows that were written.
        """
        schema = keyed_schema(self.info, *self.key_types)
        label = FileLabel(kind="keyed", state=self.info.name, subtask=subtask, version=self.target.version)
        writer = KeyedWriter(files, label, schema, key_groups)
        for table in tables:
            for key_group, rows in by_key_group(self._folded(table).cast(schema)):
                assert key_group in key_groups, "all rows are in the range"
                if self._has_deltas and key_group == 0:
                    self._hash(_keys_of(rows))  # raises for an unsupported key, unless it is deleted
                writer.add(key_group, [rows])
            wrote(table.nbytes)
        writer.finish()

    def _folded(self, table: pa.Table) -> pa.Table:
        """Merge the layers; a key has the same new key group in all of them."""
        if not self._has_deltas:
            return table
        column = table.column(LAYER)
        numbers = sorted({0, *pc.unique(column).to_pylist()})
        base, *deltas = (table.filter(pc.equal(column, number)).drop_columns(LAYER) for number in numbers)
        return merge([base.drop_columns(DELETED), *deltas])

    def _key_groups_of(self, keys: Any) -> pa.Array:
        """Return the new key groups; an unsupported key gets the first one, because a later layer may delete it."""
        try:
            return self._hash(keys)
        except UnsupportedKey:
            if not self._has_deltas:
                raise
        values = keys if isinstance(keys, list) else keys.to_pylist()
        return pa.array([self._key_group_or_first(key) for key in values], pa.int32())

    def _key_group_or_first(self, key: Any) -> int:
        try:
            return key_group_of(key, self.target.max_parallelism, self.target.hash)
        except UnsupportedKey:
            return 0

    def _hash(self, keys: object) -> pa.Array:
        return pa.array(key_groups_of(keys, self.target.max_parallelism, self.target.hash), pa.int32())


@dataclass(frozen=True, slots=True)
class Rewrite:
    """Everything that an engine has to rewrite. Picklable.

    Attributes
    ----------
    folder : Folder
        The operator's folder.
    target : Target
        The goal of the rewrite.
    states : tuple of StateRewrite
        The keyed states of the snapshot.
    channels : tuple of tuple of DataFile
        The files of in-flight elements, for each channel of each step that has any.
    """

    folder: Folder
    target: Target
    states: tuple[StateRewrite, ...]
    channels: tuple[tuple[DataFile, ...], ...]

    @classmethod
    def of(cls, folder: Folder, parent: Manifest, target: Target) -> Rewrite:
        """Plan the rewrite of a snapshot from its manifest and footers."""
        states = tuple(StateRewrite.of(folder, parent, info, target) for info in parent.states)
        channels: dict[tuple[str | None, int], list[DataFile]] = {}
        for file in parent.files_of("in_flight"):
            channels.setdefault((file.state, file.subtask), []).append(file)
        return cls(folder, target, states, tuple(map(tuple, channels.values())))

    @property
    def bytes(self) -> int:
        """The number of bytes that have to be read."""
        files = {file.path: file.bytes for state in self.states for file in state.files}
        return sum(files.values()) + sum(file.bytes for channel in self.channels for file in channel)

    def write_channel(self, files: FileWriter, channel: Sequence[DataFile]) -> None:
        """Rewrite the in-flight elements of a channel, cut at the ranges of the new subtasks.

        They fit into memory, as they did for their writer.
        """
        table = self._channel_table(channel)
        first = channel[0]
        name = first.subtask if first.state is None else f"{first.state}.{first.subtask}"
        label = FileLabel(kind="in_flight", state=first.state, subtask=first.subtask, version=self.target.version)
        found = table.column(KEY_GROUP).to_numpy()
        for subtask in range(self.target.parallelism):
            owned = range_of(subtask, self.target.parallelism, self.target.max_parallelism)
            # Elements without a key are in the file with the lowest key groups, so readers know where they are.
            start, end = found.searchsorted([owned.start if subtask else NO_KEY_GROUP, owned.end + 1])
            if start < end:
                path = f"in_flight-{owned.start}-{owned.end}-of-{name}"
                files.write(label, path, owned, encoded_in_flight(table.slice(start, end - start)))

    def _channel_table(self, channel: Sequence[DataFile]) -> pa.Table:
        """Return all elements of a channel under their new key groups."""
        tables = []
        for reader in (ParquetReader(self.folder, file) for file in channel):
            table = reader.read_all()
            key_groups = table.column(KEY_GROUP).to_numpy().copy()
            keyed = key_groups != NO_KEY_GROUP
            if keyed.any():
                with damage_named(reader.path, reader.file.key_groups):
                    keys = decoded(table.filter(pa.array(keyed)), "key")
                key_groups[keyed] = key_groups_of(keys, self.target.max_parallelism, self.target.hash)
            tables.append(_with_key_groups(table, pa.array(key_groups, pa.int32())))
        schema = common_schema(table.schema for table in tables)
        joined = pa.concat_tables([in_common_schema(table, schema) for table in tables])
        return pc.take(joined, np.lexsort([joined.column(name).to_numpy() for name in ("sequence", KEY_GROUP)]))

    def check(self, files: Iterable[DataFile]) -> None:
        """Check that an engine has written everything.

        Raises
        ------
        IncompleteSnapshot
            A key group or a channel is missing or duplicate.
        """
        written = list(files)
        for state in self.states:
            ranges = sorted((file.key_groups for file in written if file.state == state.info.name), key=_start_of)
            ends = [-1, *(key_groups.end for key_groups in ranges)]
            if [*map(_start_of, ranges), self.target.max_parallelism] != [end + 1 for end in ends]:
                raise IncompleteSnapshot(f"state {state.info.name!r} was written for {ranges}")
        if _elements_by_channel(written) != _elements_by_channel(chain.from_iterable(self.channels)):
            raise IncompleteSnapshot(f"of the in-flight elements of {len(self.channels)} channels not all were written")


def rewritten_manifest(
    folder: Folder,
    parent: Manifest,
    target: Target,
    engine: Callable[[Rewrite], tuple[DataFile, ...]],
) -> Manifest:
    """Rewrite a snapshot's rows, and return the manifest to commit.

    The elements of a channel may now be in any key group, so its range becomes the full one. Operator state and outputs
    stay the same.
    """
    rewrite = Rewrite.of(folder, parent, target)
    written = engine(rewrite)
    rewrite.check(written)
    files = (*written, *parent.files_of("operator", "output"))
    return next_manifest(
        parent,
        "rewrite",
        parallelism=target.parallelism,
        max_parallelism=target.max_parallelism,
        hash=target.hash,
        files=files,
        channels=tuple(replace(channel, key_groups=target.key_groups, cut_id=None) for channel in parent.channels),
        required_features=features_of(files, parent.states, parent.channels),
    )


def _elements_by_channel(files: Iterable[DataFile]) -> Counter[tuple[str | None, int]]:
    found = Counter[tuple[str | None, int]]()
    for file in files:
        if file.kind == "in_flight":
            found[file.state, file.subtask] += file.rows
    return found


def _keys_of(table: pa.Table) -> Any:
    return decode_column(table, "key") if is_packed(table.schema.field("key")) else table.column("key")


def _with_key_groups(table: pa.Table, key_groups: pa.Array) -> pa.Table:
    return table.set_column(0, table.schema.field(KEY_GROUP), key_groups)


def _start_of(key_groups: KeyGroupRange) -> int:
    return key_groups.start


def repartition(
    snapshot: Snapshot,
    parallelism: int,
    max_parallelism: int | None,
    hash_: str | None,
    rewrite: Callable[[Rewrite], tuple[DataFile, ...]] | None,
) -> Snapshot:
    """Do what `SnapshotStore.repartition` describes; without `rewrite`, commit a manifest over the same files.

    Raises
    ------
    ConfigError
        The parallelism does not fit, or the change requires a rewrite.
    """
    folder, parent = snapshot.folder, snapshot.manifest
    target = Target.of(parent, parallelism, max_parallelism, hash_)
    if rewrite is None:
        target.check_is_kept(parent)
        manifest = next_manifest(parent, "repartition", parallelism=parallelism)
    else:
        manifest = rewritten_manifest(folder, parent, target, rewrite)
    return Snapshot(folder, put_manifest(folder, manifest))
