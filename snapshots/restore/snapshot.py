"""`Snapshot`: access to a committed snapshot."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from keygroups.arguments import check_instance, check_integer
from keygroups.errors import ConfigError
from keygroups.ranges import KeyGroupRange, check_parallelism, range_of
from keygroups.representation import html_facts, representation
from snapshots.errors import SnapshotNotFound
from snapshots.filesystem import Folder, attempts
from snapshots.format.delivered import by_version, last_delivered, undelivered
from snapshots.format.manifest import Manifest, manifest_name
from snapshots.format.schemas import without_field_ids
from snapshots.format.steps import check_step, of_step
from snapshots.named_manifest import AnyManifest, complete, head_of, load_committed, within
from snapshots.restore.outputs import StoredOutputs
from snapshots.restore.reader import StateReader
from snapshots.restore.share import SubtaskRestore
from snapshots.restore.streaming import StateStream, all_key_groups
from snapshots.restore.tables import (
    ITEMS_SCHEMA,
    element_tables,
    elements_schema,
    item_tables,
    pandas_frame,
    polars_frame,
)
from snapshots.versions import load_manifest, newest_version


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A committed snapshot: immutable, picklable, and safe to use from any thread.

    A pickle only names the snapshot, so it is small. A process that unpickles it reads the manifest, and of a large one
    only what its subtasks need.

    Attributes
    ----------
    folder : Folder
        The operator's folder.
    """

    folder: Folder
    _manifest: AnyManifest
    _steps: dict[str, Manifest] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __reduce__(self) -> tuple[Any, ...]:
        return _committed, (self.folder, self.version, head_of(self._manifest).snapshot_id)

    def __repr__(self) -> str:
        return representation(self, self._facts())

    def _repr_html_(self) -> str:
        manifest = self.manifest
        return html_facts(
            f"snapshot {self.version} of {manifest.operator_id}",
            self._facts()
            | {"committed": manifest.created_at, "operation": manifest.operation}
            | {"rows": manifest.rows_total, "bytes": manifest.bytes_total},
        )

    def _facts(self) -> dict[str, object]:
        return {
            "version": self.version,
            "uri": self.folder.uri,
            "parallelism": self.parallelism,
            "max_parallelism": self.max_parallelism,
            "state_names": self.state_names,
            "in_flight_count": self.in_flight_count,
        }

    @property
    def manifest(self) -> Manifest:
        """The complete description of the snapshot."""
        return complete(self._manifest)

    @property
    def version(self) -> int:
        """The version of the snapshot: 1, 2, 3 and so on."""
        return head_of(self._manifest).version

    @property
    def parallelism(self) -> int:
        """The default parallelism for a restore."""
        return head_of(self._manifest).parallelism

    @property
    def max_parallelism(self) -> int:
        """The number of key groups."""
        return head_of(self._manifest).max_parallelism

    @property
    def state_names(self) -> tuple[str, ...]:
        """The names of the keyed states; in a job, a name is `step.state`."""
        return tuple(state.name for state in head_of(self._manifest).states)

    @property
    def operator_state_names(self) -> tuple[str, ...]:
        """The names of the states without a key; in a job, a name is `step.state`."""
        return tuple(state.name for state in head_of(self._manifest).operator_states)

    @property
    def in_flight_count(self) -> int:
        """How many elements were in flight at the barrier, watermarks included."""
        return head_of(self._manifest).in_flight_count

    @property
    def source_position(self) -> dict[str, Any] | None:
        """The position of the writer's source at the barrier; None if the writer stored none."""
        return head_of(self._manifest).source_position

    @property
    def step_names(self) -> tuple[str, ...]:
        """The steps of the job in the order of their first parts; none if the snapshot is of one operator."""
        return self.manifest.step_names

    def restore(self, subtask_index: int, parallelism: int | None = None, *, step: str | None = None) -> SubtaskRestore:
        """Return the share of one subtask, to pass to `AsyncWaitOperator.open(restore=…)`.

        Parameters
        ----------
        subtask_index : int
            The subtask to restore.
        parallelism : int, optional
            The number of subtasks, up to the max parallelism; by default the parallelism of the snapshot.
        step : str, optional
            One of `step_names`, for the snapshot of a job.

        Raises
        ------
        ConfigError
            The subtask index or the parallelism is out of bounds.
        WrongStep
            There is no such step, or the snapshot is of a job and no step is named.
        """
        check_step(head_of(self._manifest), step)
        parallelism = self.parallelism if parallelism is None else parallelism
        check_parallelism(parallelism, self.max_parallelism)
        subtask_index = check_integer("subtask_index", subtask_index, 0, parallelism - 1)
        owned = range_of(subtask_index, parallelism, self.max_parallelism)
        manifest = within(self._manifest, owned) if step is None else self._of_step(step)
        return SubtaskRestore.of(self.folder, manifest, subtask_index, parallelism)

    def _of_step(self, step: str) -> Manifest:
        """Return what the manifest says about a step; all subtasks of the step use the same."""
        if step not in self._steps:
            self._steps[step] = of_step(self.manifest, step)
        return self._steps[step]

    def to_arrow(self, state_name: str) -> pa.Table:
        """Read one state as a table with the columns key_group, key and value, sorted by key group.

        A state without a key has the columns subtask, position and item, with the items as msgpack. Of an
        `OperatorMapState` it is one copy, whose items are pairs of key and value.

        Parameters
        ----------
        state_name : str
            One of `state_names` or `operator_state_names`.

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
            return self._items(state_name)
        files = self.manifest.files_of("keyed", "delta", state=state_name)
        reader = StateReader(self.folder, files, self.folder.path(manifest_name(self.version)))
        table = reader.table(KeyGroupRange(0, self.max_parallelism - 1))
        # Only the metadata differ.
        return table.cast(pa.schema([without_field_ids(field) for field in table.schema]))

    def _items(self, state_name: str) -> pa.Table:
        state = self.manifest.operator_state(state_name)
        if state is None:
            names = [*self.state_names, *self.operator_state_names]
            raise ConfigError("state_name", state_name, f"the snapshot has the states {names}")
        tables = item_tables(self.folder, self.manifest, state)
        return pa.concat_tables([ITEMS_SCHEMA.empty_table(), *tables])

    def to_pandas(self, state_name: str) -> Any:
        """Read one state as a pandas DataFrame with the columns of `to_arrow`; msgpack becomes Python values.

        Parameters
        ----------
        state_name : str
            One of `state_names`.

        Raises
        ------
        ConfigError
            There is no such state.
        PackageNotInstalled
            pandas is not installed.
        """
        return pandas_frame(self.to_arrow(state_name))

    def to_polars(self, state_name: str) -> Any:
        """Read one state as a polars DataFrame with the columns of `to_arrow`, and msgpack decoded.

        Values that were msgpack are a column of their type if all of them have the same simple one, such as str, and
        Python objects otherwise.

        Parameters
        ----------
        state_name : str
            One of `state_names`.

        Raises
        ------
        ConfigError
            There is no such state.
        PackageNotInstalled
            polars is not installed.
        """
        return polars_frame(self.to_arrow(state_name))

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
            There is no such state, or `key_groups` is no range.
        """
        wanted = all_key_groups(self.manifest) if key_groups is None else key_groups
        check_instance("key_groups", wanted, KeyGroupRange, reason="pass KeyGroupRange(first, last)")
        stream = StateStream.of(self.folder, self.manifest, state_name)
        return stream.batches(wanted)

    def outputs(self) -> tuple[StoredOutputs, ...]:
        """Return the stored outputs by the version that added them, the oldest version first; nothing is read yet.

        The snapshot of an operator has only its own outputs. A job's snapshot also has the outputs of earlier
        versions that were not delivered yet when it was committed.
        """
        return tuple(StoredOutputs(self.folder, files) for files in by_version(self.manifest.files))

    def undelivered(self) -> tuple[StoredOutputs, ...]:
        """Return what `outputs` does, without the versions that have been marked as delivered since.

        Examples
        --------
        >>> for outputs in store.load().undelivered():  # doctest: +SKIP
        ...     sink(outputs.to_arrow(), outputs.version)
        ...     outputs.mark_delivered()
        """
        files = undelivered(self.manifest.files, last_delivered(self.folder))
        return tuple(StoredOutputs(self.folder, found) for found in files)

    def in_flight(self, *, step: str | None = None) -> pa.Table:
        """Read all in-flight elements as a table; elements of a job have a column `step`.

        Keys, values and outputs have types of their own where all elements have the same, and are msgpack otherwise.

        Parameters
        ----------
        step : str, optional
            Only the elements of this step of a job; values of one step often have a type where all together have none.

        Raises
        ------
        WrongStep
            There is no such step.
        """
        manifest = self.manifest
        if step is not None:
            check_step(manifest, step)
            manifest = self._of_step(step)
        schema = elements_schema(self.folder, manifest)
        tables = element_tables(self.folder, manifest, schema)
        return pa.concat_tables([schema.empty_table(), *tables])


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
