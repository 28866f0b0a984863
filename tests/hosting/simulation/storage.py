"""Storage as the driver and the hosts see it: parts, manifests that are created once, a claim. It keeps objects."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from async_op.hosting.messages import Manifest as Named
from keygroups import KeyGroupRange, range_of
from keygroups.descriptors import StateDescriptor
from keygroups.state import MemoryGroup
from snapshots import InFlightElement, SubtaskSnapshot
from snapshots.format.in_flight_elements import RestoredQueue, merge_channels


class CommitRefused(Exception):
    """Somebody else has committed, or owns the claim."""


class CommitFailed(Exception):
    """The storage has failed; nothing was committed."""


class OutcomeUnknown(Exception):
    """The storage has failed, and something may have been committed."""


@dataclass(frozen=True)
class StoredPart:
    """What one host has written."""

    cut_id: str
    key_groups: KeyGroupRange
    states: dict[str, dict[int, dict[Hashable, Any]]]
    in_flight: tuple[InFlightElement, ...]
    watermark: int | None
    outputs: list[Any]


@dataclass(frozen=True)
class Manifest:
    """A version."""

    version: int
    snapshot_id: str
    parallelism: int
    max_parallelism: int
    parts: tuple[StoredPart, ...]
    batch: int
    """The newest batch that it has the rows of."""
    operator_states: tuple[()] = ()

    @property
    def outputs(self) -> list[Any]:
        return [output for part in self.parts for output in part.outputs]

    @property
    def in_flight(self) -> list[InFlightElement]:
        return [element for part in self.parts for element in part.in_flight]

    def names(self, subtask: int, parallelism: int) -> Named:
        """Return what it says about a subtask."""
        part = self.parts[subtask] if self.parallelism == parallelism else None
        return Named(self.snapshot_id, None if part is None else part.cut_id)


@dataclass(frozen=True)
class Share:
    """What a subtask restores; stands in for `SubtaskRestore`."""

    manifest: Manifest
    subtask_index: int
    parallelism: int

    @property
    def snapshot_id(self) -> str:
        return self.manifest.snapshot_id

    @property
    def key_groups(self) -> KeyGroupRange:
        return range_of(self.subtask_index, self.parallelism, self.manifest.max_parallelism)

    def check_fits(self, subtask_index: int, parallelism: int, max_parallelism: int, hash_name: str) -> None:
        assert (subtask_index, parallelism) == (self.subtask_index, self.parallelism)

    def states(
        self, descriptors: Iterable[StateDescriptor], now: int | None = None
    ) -> Mapping[str, Mapping[int, MemoryGroup]]:
        kinds = {one.name: one.kind for one in descriptors}
        found: dict[str, dict[int, MemoryGroup]] = {name: {} for name in kinds}
        for part in self.manifest.parts:
            for name, groups in part.states.items():
                owned = {number: group for number, group in groups.items() if number in self.key_groups}
                found[name] |= {number: MemoryGroup(dict(group), kinds[name]) for number, group in owned.items()}
        return found

    def queue(self) -> RestoredQueue:
        owned = self.key_groups
        fed = {
            number: part.watermark
            for number, part in enumerate(self.manifest.parts)
            if part.key_groups.intersection(owned) is not None
        }
        elements = [
            element
            for element in self.manifest.in_flight
            if element.channel in fed and (element.is_watermark or element.key_group in owned)
        ]
        return merge_channels(elements, fed)


@dataclass
class Storage:
    """The versions. `owner` is the run that may commit."""

    manifests: list[Manifest] = field(default_factory=list)
    owner: str | None = None

    @property
    def newest(self) -> Manifest | None:
        return self.manifests[-1] if self.manifests else None

    @property
    def version(self) -> int:
        return len(self.manifests)

    def commit(self, owner: str, manifest: Manifest) -> None:
        """Create the next version if it is absent."""
        if owner != self.owner or manifest.version != self.version + 1:
            raise CommitRefused(owner, manifest.version)
        self.manifests.append(manifest)


def stored(snapshot: SubtaskSnapshot, cut_id: str, outputs: list[Any]) -> StoredPart:
    """Copy what was cut, as writing it does."""
    states = {
        cut.descriptor.name: {number: group.load() for number, group in cut.groups.items()} for cut in snapshot.states
    }
    return StoredPart(cut_id, snapshot.key_groups, states, snapshot.in_flight, snapshot.watermark, outputs)


def done_in(manifests: Sequence[Manifest]) -> frozenset[int]:
    """Return the rows whose calls have returned in some versions."""
    rows = {output[1] for manifest in manifests for output in manifest.outputs if output[0] == "row"}
    rows |= {element.value[0] for element in manifests[-1].in_flight if element.completed and is_row(element)}
    return frozenset(rows)


def is_row(element: Any) -> bool:
    return not element.is_watermark and isinstance(element.value, tuple) and not hasattr(element.value, "event_time")
