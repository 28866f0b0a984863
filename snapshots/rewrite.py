"""The rewrite of a snapshot: every row to the key group that another max parallelism or hash gives its key.

An engine reads the old files and writes the new ones; what it does with a file and with a range of new key groups is
the same for all of them and stands here. Nothing of the old snapshot is touched.
"""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args

import pyarrow as pa

from keygroups.codec import unpack
from keygroups.errors import ConfigError, UnsupportedKey
from keygroups.hashing import key_group_of, key_groups_of, key_hasher
from keygroups.ranges import KeyGroupRange, check_parallelism
from snapshots import compute as pc
from snapshots.buckets import Buckets, by_key_group
from snapshots.columns import DELETED, common_key_type, index_columns, is_packed, keyed_schema
from snapshots.commit import next_manifest
from snapshots.errors import IncompleteSnapshot
from snapshots.features import features_of
from snapshots.files import FileLabel, FileWriter, KeyedWriter
from snapshots.filesystem import Folder
from snapshots.manifest import DataFile, Manifest, StateInfo, manifest_name
from snapshots.parquet import KEY_GROUP, ParquetReader, damage_named
from snapshots.reader import KeyedReader, StateReader, decode_column, in_schema, merge, stored_key_type
from snapshots.subtask import NO_KEY_GROUP
from snapshots.writer import encoded_in_flight

Progress = Callable[[int, int], None]
"""Is told how many bytes are done, and of how many: each byte counts when it is read, and again when it is written."""

Engine = Literal["local", "spark"]

LAYER = "layer"
"""The column that tells, on the way to the new files, in which snapshot a row was written; 0 for all base files."""

_LAYER = pa.field(LAYER, pa.int64(), False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Which key groups the rows are to have, for which parallelism, and in which version."""

    parallelism: int
    max_parallelism: int
    hash: str
    version: int

    @classmethod
    def of(cls, parent: Manifest, parallelism: int, max_parallelism: int | None, hash_: str | None) -> Target:
        """Take from a snapshot what is not asked for.

        Raises
        ------
        ConfigError
            The parallelism does not fit, or there is no such hash.
        """
        key_groups = parent.max_parallelism if max_parallelism is None else max_parallelism
        check_parallelism(parallelism, key_groups)
        key_hasher(hash_ or parent.hash)
        return cls(
            parallelism=parallelism,
            max_parallelism=key_groups,
            hash=hash_ or parent.hash,
            version=parent.version + 1,
        )

    def check_is_kept(self, parent: Manifest) -> None:
        """Refuse what takes a rewrite.

        Raises
        ------
        ConfigError
            The snapshot has another max parallelism or hash.
        """
        for name in ("max_parallelism", "hash"):
            wanted, found = getattr(self, name), getattr(parent, name)
            if wanted != found:
                reason = f"the snapshot has {found!r}, and to change that every row is written again: pass rewrite"
                raise ConfigError(name, wanted, f"{reason}=True, or --rewrite on the command line")

    @property
    def key_groups(self) -> KeyGroupRange:
        """All of them."""
        return KeyGroupRange(0, self.max_parallelism - 1)


@dataclass(frozen=True)
class StateRewrite:
    """How one keyed state is rewritten. Picklable.

    Attributes
    ----------
    folder : Folder
        The operator's folder.
    target : Target
        What it is to become.
    info : StateInfo
        The state.
    files : tuple of DataFile
        Its files.
    key_types : tuple of (pyarrow.DataType or None)
        Of all keys and, in a map, of the keys there; None if they are to be msgpack.
    """

    folder: Folder
    target: Target
    info: StateInfo
    files: tuple[DataFile, ...]
    key_types: tuple[pa.DataType | None, ...]

    @classmethod
    def of(cls, folder: Folder, manifest: Manifest, info: StateInfo, target: Target) -> StateRewrite:
        """Look at the state's footers, and check that its layers are whole."""
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
        """Read what holds of a file, a bounded piece at a time, with the new key groups."""
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
            Stores them.
        tables : iterable of pyarrow.Table
            Of whole key groups, ascending from table to table, as `Buckets.take` gives them.
        key_groups : KeyGroupRange
            The range.
        subtask : int
            Who writes.
        wrote : callable
            Is told how many bytes of rows were written.
        """
        schema = keyed_schema(self.info, *self.key_types)
        label = FileLabel(kind="keyed", state=self.info.name, subtask=subtask, version=self.target.version)
        writer = KeyedWriter(files, label, schema, key_groups)
        for table in tables:
            for key_group, rows in by_key_group(self._folded(table).cast(schema)):
                assert key_group in key_groups, "rows are of the range"
                if self._has_deltas and key_group == 0:
                    self._hash(_keys_of(rows))  # raises for what is no deleted key
                writer.add(key_group, [rows])
            wrote(table.nbytes)
        writer.finish()

    def _folded(self, table: pa.Table) -> pa.Table:
        """Return what holds of the layers: a key is in the same new key group in all of them."""
        if not self._has_deltas:
            return table
        column = table.column(LAYER)
        numbers = sorted({0, *pc.unique(column).to_pylist()})
        base, *deltas = (table.filter(pc.equal(column, number)).drop_columns(LAYER) for number in numbers)
        return merge([base.drop_columns(DELETED), *deltas])

    def _key_groups_of(self, keys: Any) -> pa.Array:
        """Return the new key groups: the first for a key that can have none, but may be deleted in a layer."""
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
    """All that an engine has to write again. Picklable.

    Attributes
    ----------
    folder : Folder
        The operator's folder.
    target : Target
        What the snapshot is to become.
    states : tuple of StateRewrite
        Its keyed states.
    channels : tuple of DataFile
        The files of its in-flight elements, one for each channel that has some.
    """

    folder: Folder
    target: Target
    states: tuple[StateRewrite, ...]
    channels: tuple[DataFile, ...]

    @classmethod
    def of(cls, folder: Folder, parent: Manifest, target: Target) -> Rewrite:
        """Look at a snapshot's manifest and footers."""
        states = tuple(StateRewrite.of(folder, parent, info, target) for info in parent.states)
        return cls(folder, target, states, parent.files_of("in_flight"))

    @property
    def bytes(self) -> int:
        """How many bytes of files are read."""
        files = {file.path: file.bytes for state in self.states for file in state.files}
        return sum(files.values()) + sum(file.bytes for file in self.channels)

    def write_channel(self, files: FileWriter, file: DataFile) -> None:
        """Write the in-flight elements of a channel again; they were in one writer's memory, and so they are here."""
        reader = ParquetReader(self.folder, file)
        table = reader.read_all()
        key_groups = table.column(KEY_GROUP).to_numpy().copy()
        keyed = key_groups != NO_KEY_GROUP
        if keyed.any():
            with damage_named(reader.path, file.key_groups):
                keys = list(map(unpack, table.column("key").filter(pa.array(keyed)).to_pylist()))
            key_groups[keyed] = key_groups_of(keys, self.target.max_parallelism, self.target.hash)
        table = _with_key_groups(table, pa.array(key_groups, pa.int32()))
        table = table.sort_by([(KEY_GROUP, "ascending"), ("sequence", "ascending")])
        owned = self.target.key_groups
        name = f"in_flight-{owned.start}-{owned.end}-of-{file.subtask}"
        label = FileLabel(kind="in_flight", subtask=file.subtask, version=self.target.version)
        files.write(label, name, owned, encoded_in_flight(table))

    def check(self, files: Iterable[DataFile]) -> None:
        """Check that what an engine wrote is the whole.

        Raises
        ------
        IncompleteSnapshot
            A key group or a channel is missing or there twice.
        """
        written = list(files)
        for state in self.states:
            ranges = sorted((file.key_groups for file in written if file.state == state.info.name), key=_start_of)
            ends = [-1, *(key_groups.end for key_groups in ranges)]
            if [*map(_start_of, ranges), self.target.max_parallelism] != [end + 1 for end in ends]:
                raise IncompleteSnapshot(f"state {state.info.name!r} was written for {ranges}")
        elements = {file.subtask: file.rows for file in written if file.kind == "in_flight"}
        if elements != {file.subtask: file.rows for file in self.channels}:
            raise IncompleteSnapshot(f"of the in-flight elements of {len(self.channels)} channels not all were written")


def rewrite_locally(rewrite: Rewrite, progress: Progress = lambda _done, _total: None) -> tuple[DataFile, ...]:
    """Write everything again in this process: memory is bounded, local disk is used for a state at a time.

    Raises
    ------
    SnapshotCorrupted
        A file is damaged.
    UnsupportedKey
        The new hash has no place for a key.
    """
    meter = _Meter(progress, 2 * rewrite.bytes)
    with (
        tempfile.TemporaryDirectory(prefix="keygroups-rewrite-") as directory,
        FileWriter(rewrite.folder, uuid.uuid4().hex) as files,
    ):
        for number, state in enumerate(rewrite.states):
            _rewrite_state(state, files, Path(directory, str(number)), meter)
        for channel in rewrite.channels:
            rewrite.write_channel(files, channel)
            meter.add(2 * channel.bytes)
        return files.stored()


def engine_named(
    name: str, spark: Any = None, progress: Progress | None = None
) -> Callable[[Rewrite], tuple[DataFile, ...]]:
    """Return what writes everything again.

    Raises
    ------
    ConfigError
        There is no such engine, or no session for it.
    """
    if name not in get_args(Engine):
        raise ConfigError("engine", name, f"use one of: {', '.join(get_args(Engine))}")
    if name == "local":
        return lambda rewrite: rewrite_locally(rewrite, progress or (lambda _done, _total: None))
    if spark is None:
        raise ConfigError("spark", None, "the engine 'spark' runs as a job of a session: pass it")
    from snapshots.spark.rewrite import rewrite_with_spark

    return lambda rewrite: rewrite_with_spark(rewrite, spark)


def rewritten_manifest(
    folder: Folder,
    parent: Manifest,
    target: Target,
    engine: Callable[[Rewrite], tuple[DataFile, ...]],
) -> Manifest:
    """Write a snapshot's rows again, and return the manifest that is to be committed.

    Each channel's elements may now be in any key group, so its range becomes the whole one. Operator state and outputs
    stay as they are.
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
        required_features=features_of(files, parent.states),
    )


@dataclass(slots=True)
class _Meter:
    progress: Progress
    total: int
    done: float = 0

    def add(self, bytes_: float) -> None:
        self.reach(self.done + bytes_)

    def reach(self, bytes_: float) -> None:
        self.done = bytes_
        self.progress(min(round(self.done), self.total), self.total)


def _rewrite_state(state: StateRewrite, files: FileWriter, directory: Path, meter: _Meter) -> None:
    directory.mkdir()
    before = meter.done
    bytes_ = sum({file.path: file.bytes for file in state.files}.values())
    rows_read = sum(file.rows for file in state.files)
    with Buckets(directory, state.target.key_groups) as buckets:
        for file in state.files:
            for table in state.rows(file):
                buckets.add(table)
                meter.add(bytes_ * table.num_rows / rows_read)
        share = bytes_ / max(buckets.bytes, 1)
        state.write(files, buckets.take(), state.target.key_groups, 0, lambda written: meter.add(written * share))
    meter.reach(before + 2 * bytes_)


def _keys_of(table: pa.Table) -> Any:
    return decode_column(table, "key") if is_packed(table.schema.field("key")) else table.column("key")


def _with_key_groups(table: pa.Table, key_groups: pa.Array) -> pa.Table:
    return table.set_column(0, table.schema.field(KEY_GROUP), key_groups)


def _start_of(key_groups: KeyGroupRange) -> int:
    return key_groups.start
