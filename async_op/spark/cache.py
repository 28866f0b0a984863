"""Key groups that a Python worker keeps from one epoch to the next, so that an epoch reads only what others changed."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from keygroups.descriptors import StateDescriptor
from keygroups.state import LayeredGroup, StateCut
from snapshots import SubtaskRestore
from snapshots.reader import ArrowGroup
from snapshots.restore import RestoredGroup

KEYS_MAX = 4_000_000
"""How many keys a process keeps; what was used longest ago is dropped."""

Group = dict[Hashable, object]


class _Place(NamedTuple):
    """Whose key group it is; a state of another type is another state."""

    uri: str
    state: str
    type: str
    key_group: int


@dataclass(frozen=True, slots=True)
class _Kept:
    group: Group
    cut_id: str
    version: int


class StateCache:
    """Content of key groups as it was cut. One thread may call it at a time.

    It is never needed, and wiping it changes nothing but time: what is kept is used only if the driver says that its
    cut was committed. Which worker, or which host, runs a subtask next does not matter either: a key group that others
    have changed since is rolled forward by their deltas.

    Parameters
    ----------
    keys_max : int
        How many keys are kept, of all operators together.
    """

    def __init__(self, keys_max: int = KEYS_MAX) -> None:
        self._keys_max = keys_max
        self._keys = 0
        self._kept: OrderedDict[_Place, _Kept] = OrderedDict()

    def __len__(self) -> int:
        """Return the number of keys that are kept."""
        return self._keys

    def keep(self, uri: str, cuts: Iterable[StateCut], version: int) -> None:
        """Keep what is in memory of a cut that is going to be committed as a version, or never."""
        for cut in cuts:
            for key_group, group in cut.groups.items():
                if isinstance(group, LayeredGroup):
                    group = group.load()
                if isinstance(group, dict):
                    self._put(_place(uri, cut.descriptor, key_group), _Kept(group, cut.cut_id, version))

    def find(
        self, uri: str, descriptor: StateDescriptor, stored: ArrowGroup, committed: frozenset[str]
    ) -> Group | None:
        """Return what a stored key group holds, if that follows from what is kept.

        Parameters
        ----------
        uri : str
            The operator's folder.
        descriptor : StateDescriptor
            The state.
        stored : ArrowGroup
            The key group in a snapshot.
        committed : frozenset of str
            The ids of the cuts that are known to be in that snapshot or in one before it.
        """
        kept = self._kept.get(_place(uri, descriptor, stored.key_group))
        if kept is None or kept.cut_id not in committed:
            return None
        return stored.roll_forward(kept.group, kept.version)

    def _put(self, place: _Place, kept: _Kept) -> None:
        self._drop(place)
        self._kept[place] = kept
        self._keys += len(kept.group)
        while self._keys > self._keys_max:
            self._drop(next(iter(self._kept)))

    def _drop(self, place: _Place) -> None:
        dropped = self._kept.pop(place, None)
        if dropped is not None:
            self._keys -= len(dropped.group)


@dataclass(frozen=True, slots=True)
class CachedRestore(SubtaskRestore):
    """A subtask's share of a snapshot, of which some key groups are in memory already.

    Attributes
    ----------
    cache : StateCache
        The process's.
    committed : frozenset of str
        As for `StateCache.find`.
    """

    cache: StateCache
    committed: frozenset[str]

    @classmethod
    def on(cls, share: SubtaskRestore, cache: StateCache, committed: frozenset[str]) -> CachedRestore:
        """Look into a cache before a share is read."""
        return cls(
            share.folder,
            share.manifest,
            share.subtask_index,
            share.parallelism,
            share.keyless,
            share.operator_slices,
            cache,
            committed,
        )

    def states(
        self, descriptors: Iterable[StateDescriptor], now: int | None = None
    ) -> dict[str, dict[int, RestoredGroup]]:
        """Return the keyed state by name and key group, as `SubtaskRestore` does; what is kept as dicts."""
        declared = tuple(descriptors)
        stored = SubtaskRestore.states(self, declared, now)
        return {descriptor.name: self._with_kept(descriptor, stored[descriptor.name]) for descriptor in declared}

    def _with_kept(self, descriptor: StateDescriptor, stored: Mapping[int, RestoredGroup]) -> dict[int, RestoredGroup]:
        groups = dict(stored)
        for key_group, group in stored.items():
            if isinstance(group, ArrowGroup):
                kept = self.cache.find(self.folder.uri, descriptor, group, self.committed)
                groups[key_group] = group if kept is None else kept
        return groups


def _place(uri: str, descriptor: StateDescriptor, key_group: int) -> _Place:
    expires = "expiring " if descriptor.ttl is not None else ""
    return _Place(uri, descriptor.name, f"{expires}{descriptor.kind} {descriptor.type}", key_group)
