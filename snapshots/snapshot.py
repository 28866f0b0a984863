"""A committed snapshot."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from keygroups.errors import ConfigError
from keygroups.ranges import KeyGroupRange, check_parallelism
from snapshots.filesystem import Folder
from snapshots.in_flight import IN_FLIGHT_SCHEMA
from snapshots.manifest import Manifest, manifest_name
from snapshots.parquet import ParquetReader
from snapshots.reader import StateReader
from snapshots.restore import SubtaskRestore
from snapshots.schemas import without_field_ids
from snapshots.streaming import StateStream, all_key_groups
from snapshots.versions import load_committed


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A committed snapshot: immutable, picklable, and safe to use from any thread.

    A pickle names the snapshot, however large it is; who unpickles it reads the manifest.

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
        """The place in the sequence of snapshots: 1, 2, 3 and so on."""
        return self.manifest.version

    @property
    def parallelism(self) -> int:
        """The parallelism with which it is restored unless told otherwise."""
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
        """Where the writer's source stood."""
        return self.manifest.source_position

    def restore(self, subtask_index: int, parallelism: int | None = None) -> SubtaskRestore:
        """Return one subtask's share, for `AsyncWaitOperator.open(restore=…)`.

        Parameters
        ----------
        subtask_index : int
            The subtask to restore.
        parallelism : int, optional
            Of how many; any number up to the max parallelism. The snapshot's own if left out.

        Raises
        ------
        ConfigError
            There is no such subtask.
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
            `key` is int64, float64, string or binary where all keys are of that kind, else msgpack in binary;
            `value` has the declared type, else msgpack in binary.

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
        """Read one state as a stream of record batches, with the columns of `to_arrow`, in bounded memory.

        Parameters
        ----------
        state_name : str
            One of `state_names`.
        key_groups : KeyGroupRange, optional
            Only these.

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


def _committed(folder: Folder, version: int, snapshot_id: str) -> Snapshot:
    return Snapshot(folder, load_committed(folder, version, snapshot_id))
