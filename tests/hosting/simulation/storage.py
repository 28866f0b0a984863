"""Storage as the driver and the hosts see it: real snapshots, on an object store that fails for each of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import pyarrow as pa

from async_op.hosting.fencing import NewestManifest as Named
from keygroups import OperatorListState, range_of
from keygroups.descriptors import StateDescriptor
from keygroups.state.timers import TIMER_STATES
from snapshots import (
    CommitConflict,
    CommitOutcomeUnknown,
    InFlightElement,
    Snapshot,
    SnapshotStore,
    SubtaskRestore,
    WriterFenced,
)
from snapshots.filesystem import Folder
from snapshots.format.manifest import manifest_name
from tests.hosting.simulation.scenario import Scenario
from tests.hosting.simulation.states import ARMED, STATES
from tests.simulation.plain import content_of
from tests.simulation.world import storage as world

_T = TypeVar("_T")

FAILURES = (CommitConflict, CommitOutcomeUnknown, WriterFenced, ConnectionError, TimeoutError)
"""What a driver or a host may be told by a storage that fails, and by others who have committed."""

_OF_REQUESTS = frozenset({"lost request", "lost reply", "late request", "stale listing"})
_OF_DRIVERS = _OF_REQUESTS | {"crash"}
"""Hosts are killed by the cluster, at every step."""

_HOST_OPERATIONS, _DRIVER_OPERATIONS = 30, 100
"""About as many as a host has in its life, and a driver in a few epochs."""

_DECLARED = (*STATES, ARMED, *TIMER_STATES.values())

_OUTPUTS = pa.schema([("kind", pa.string()), ("subject", pa.string()), ("place", pa.int64())])


@dataclass(frozen=True)
class Version:
    """What a version holds, as it is read without a fault."""

    snapshot: Snapshot
    in_flight: tuple[InFlightElement, ...]
    outputs: list[Any]

    def table(self, state: StateDescriptor, now: int = 0, parallelism: int = 1) -> dict[Any, Any]:
        """Return what hosts with this parallelism would restore of a state at a time, by key."""
        found: dict[Any, Any] = {}
        for subtask in range(parallelism):
            groups = self.snapshot.restore(subtask, parallelism).states(_DECLARED, now)[state.name]
            for group in groups.values():
                loaded = group.load()
                assert not found.keys() & loaded, f"of {state}, a key is there twice"
                found |= {key: content_of(held, state) for key, held in loaded.items()}
        return found

    def items(self, state: OperatorListState, parallelism: int = 1) -> Counter[Any]:
        """Return the items of a state without a key."""
        shares = [self.snapshot.restore(subtask, parallelism) for subtask in range(parallelism)]
        return Counter(item for share in shares for item in share.operator_state(state.name))

    @cached_property
    def timers(self) -> list[tuple[int, Any]]:
        """The timers that are armed and have not fired."""
        return [(when, key) for key, whens in self.table(ARMED).items() for when in whens]

    @property
    def number(self) -> int:
        return self.snapshot.version

    @property
    def batch(self) -> int:
        """The newest batch that it has the rows of."""
        return batch_of(self.snapshot)


class Storage:
    """The object store of all processes, and what was found on it.

    Attributes
    ----------
    versions : list of Version
        All versions, as far as anybody has looked.
    is_faulty : bool
        Whether something may have gone wrong on anybody's way to it.
    """

    def __init__(self, scenario: Scenario) -> None:
        self._world = world.Storage(scenario.random("storage"), on_disk=False)
        self._clean = SnapshotStore.on(self._world.shared)
        self.versions: list[Version] = []
        self.is_faulty = False

    def of_host(self, *, fails: bool) -> Folder:
        """Return a new host's way to the storage."""
        return self._way(_OF_REQUESTS, fails, _HOST_OPERATIONS)

    def of_driver(self, *, fails: bool) -> Folder:
        """Return a new driver's way to the storage, on which the driver may die."""
        return self._way(_OF_DRIVERS, fails, _DRIVER_OPERATIONS)

    def _way(self, kinds: frozenset[str], fails: bool, operations: int) -> Folder:
        self.is_faulty |= fails
        return self._world.process(kinds, float(fails), operations)

    @property
    def newest(self) -> Snapshot | None:
        """The newest version that anybody has looked at."""
        return self.versions[-1].snapshot if self.versions else None

    def look(self) -> Iterable[Version]:
        """Read the versions that have come, and yield them."""
        while self._world.shared.exists(manifest_name(len(self.versions) + 1)):
            self.versions.append(self._read(self._clean.load(len(self.versions) + 1)))
            yield self.versions[-1]

    def _read(self, snapshot: Snapshot) -> Version:
        before = self.versions[-1] if self.versions else None
        if before is not None and before.snapshot.manifest.files == snapshot.manifest.files:
            return Version(snapshot, before.in_flight, before.outputs)
        return Version(snapshot, snapshot.restore(0, 1).queue().elements, outputs_of(snapshot))


def as_unpickled(thing: _T, folder: Folder) -> _T:
    """Return what another process gets of what was pickled for it, which it reads on its own way to the storage."""
    make, (_, *rest) = thing.__reduce__()  # type: ignore[misc]
    made: _T = make(folder, *rest)
    return made


def restored(snapshot: Snapshot | None, folder: Folder, subtask: int, parallelism: int) -> SubtaskRestore | None:
    """Return what a host restores."""
    return None if snapshot is None else as_unpickled(snapshot, folder).restore(subtask, parallelism)


def named(snapshot: Snapshot | None, subtask: int, parallelism: int) -> Named:
    """Return what a manifest says about a subtask."""
    if snapshot is None:
        return Named(None, None)
    owned = range_of(subtask, parallelism, snapshot.max_parallelism)
    cuts = [one.cut_id for one in snapshot.manifest.channels if (one.subtask, one.key_groups) == (subtask, owned)]
    is_same = snapshot.parallelism == parallelism and bool(cuts)
    return Named(snapshot.manifest.snapshot_id, cuts[0] if is_same else None)


def batch_of(snapshot: Snapshot | None) -> int:
    """Return the newest batch that a version has the rows of."""
    position = None if snapshot is None else snapshot.source_position
    return -1 if position is None else int(position["batch"])


def epoch_of(snapshot: Snapshot | None) -> int | None:
    """Return the newest epoch; the version that it was committed as."""
    position = None if snapshot is None else snapshot.source_position
    return None if position is None else int(position["epoch"])


def table_of(outputs: Iterable[Any]) -> pa.Table:
    """Return outputs as they are stored."""
    rows = [(kind, str(subject), place) for kind, subject, place in outputs]
    columns = list(zip(*rows, strict=True)) or [(), (), ()]
    return pa.table([pa.array(column, field.type) for column, field in zip(columns, _OUTPUTS, strict=True)], _OUTPUTS)


def outputs_of(snapshot: Snapshot) -> list[Any]:
    """Return the outputs that a version has."""
    rows = [row for stored in snapshot.outputs() for batch in stored.batches() for row in batch.to_pylist()]
    subjects = [int(row["subject"]) if row["kind"] == "row" else row["subject"] for row in rows]
    return [(row["kind"], subject, row["place"]) for row, subject in zip(rows, subjects, strict=True)]


def is_row(element: Any) -> bool:
    return not element.is_watermark and isinstance(element.value, tuple) and not hasattr(element.value, "event_time")
