"""`Snapshot`: access to a committed snapshot."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from keygroups.errors import ConfigError
from keygroups.ranges import KeyGroupRange, check_parallelism
from snapshots.errors import SnapshotNotFound
from snapshots.filesystem import Folder, attempts
from snapshots.format.in_flight_elements import IN_FLIGHT_SCHEMA
from snapshots.format.manifest import Manifest, manifest_name
from snapshots.format.parquet import ParquetReader
from snapshots.format.schemas import without_field_ids
from snapshots.restore.reader import StateReader
from snapshots.restore.share import SubtaskRestore
from snapshots.restore.streaming import StateStream, all_key_groups
from snapshots.versions import load_committed, load_manifest, newest_version


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A committed snapshot: immutable, picklable, and safe to use from any thread.

    A pickle only names the snapshot, so it is small. A process that unpickles it reads the manifest.

    Attributes
    ----------
    folder : Folder
        The operator's folder.
    manifest : Manifest
        The description of the snapshot.
    """

    folder: Folder
    manifest: Manifest

    def __reduce__(self) -> tuple[Any, ...]:
        return _committed, (self.folder, self.version, self.manifest.snapshot_id)

    @property
    def version(self) -> int:
        """The version of the snapshot: 1, 2, 3 and so on."""
        return self.manifest.version

    @property
    def parallelism(self) -> int:
        """The default parallelism for a restore."""
        return self.manifest.parallelism

    @property
    def max_parallelism(self) -> int:
        """The number of key groups."""
        return self.manifest.max_parallelism

    @property
    def state_names(self) -> tuple[str, ...]:
        """The names of the keyed states."""
        return tuple(state.name for state in self.manifest.states)

    @property
    def in_flight_count(self) -> int:
        """How many elements were in flight at the barrier, watermarks included."""
        return self.manifest.in_flight_count

    @property
    def source_position(self) -> dict[str, Any] | None:
        """The position of the writer's source at the barrier; None if the writer stored none."""
        return self.manifest.source_position

    def restore(self, subtask_index: int, parallelism: int | None = None) -> SubtaskRestore:
        """Return the share of one subtask, to pass to `AsyncWaitOperator.open(restore=…)`.

        Parameters
        ----------
        subtask_index : int
            The subtask to restore.
        parallelism : int, optional
            The number of subtasks, up to the max parallelism; by default the parallelism of the snapshot.

        Raises
        ------
        ConfigError
            The subtask index or the parallelism is out of bounds.
        """
        parallelism = self.parallelism if parallelism is None else parallelism
        check_parallelism(parallelism, self.max_parallelism)
        if not 0 <= subtask_index < parallelism:
            raise ConfigError("subtask_index", subtask_index, f"there are subtasks 0 to {parallelism - 1}")
        return SubtaskRestore.of(self.folder, self.manifest, subtask_index, parallelism)

    def to_arrow(self, state_name: str) -> pa.Table:
        """Read one state as a table with the columns key_group, key and value, sorted by key group.

        Parameters
        ----------
        state_name : str
            One of `state_names`.

        Returns
        -------
        pyarrow.Table
            `key` is int64, float64, string or binary if all keys have that type, otherwise binary with msgpack. `value`
            has the declared type; without one it is binary with msgpack.

        Raises
        ------
        ConfigError
            There is no such state.
        """
        if state_name not in self.state_names:
            raise ConfigError("state_name", state_name, f"the snapshot has the states {list(self.state_names)}")
        files = self.manifest.files_of("keyed", "delta", state=state_name)
        reader = StateReader(self.folder, files, self.folder.path(manifest_name(self.version)))
        table = reader.table(KeyGroupRange(0, self.max_parallelism - 1))
        return table.cast(pa.schema([without_field_ids(field) for field in table.schema]))

    def to_reader(self, state_name: str, key_groups: KeyGroupRange | None = None) -> pa.RecordBatchReader:
        """Read one state as a stream of record batches with the columns of `to_arrow`, in bounded memory.

        Parameters
        ----------
        state_name : str
            One of `state_names`.
        key_groups : KeyGroupRange, optional
            Only the rows of these key groups.

        Raises
        ------
        ConfigError
            There is no such state.
        """
        stream = StateStream.of(self.folder, self.manifest, state_name)
        return stream.batches(all_key_groups(self.manifest) if key_groups is None else key_groups)

    def in_flight(self) -> pa.Table:
        """Read all in-flight elements as a table."""
        files = self.manifest.files_of("in_flight")
        tables = [ParquetReader(self.folder, file).read_all() for file in files]
        return pa.concat_tables(tables) if tables else IN_FLIGHT_SCHEMA.empty_table()


def newest_snapshot(folder: Folder) -> Snapshot | None:
    """Return the newest snapshot in a folder, or None if there is none.

    Raises
    ------
    ManifestMissing
        A newer snapshot existed, but its manifest is missing.
    SnapshotCorrupted
        The manifest is damaged.
    """
    for _ in attempts():
        version = newest_version(folder)
        if version is None:
            return None
        try:
            return Snapshot(folder, load_manifest(folder, version))
        except SnapshotNotFound as error:
            expired = error  # others have committed and collected garbage since
    raise expired


def _committed(folder: Folder, version: int, snapshot_id: str) -> Snapshot:
    return Snapshot(folder, load_committed(folder, version, snapshot_id))
