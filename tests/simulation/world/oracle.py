"""What each version must hold: the truth of the cut that it was made of, whatever was done to it since."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from keygroups import key_group_of
from keygroups.descriptors import StateDescriptor
from keygroups.state import original_of
from keygroups.state.timers import TIMER_STATES
from snapshots import Snapshot, SnapshotStore
from snapshots.format.manifest import DataFile, Manifest
from snapshots.versions import expired_version
from tests.simulation.fed import Places, check_places, firing_in
from tests.simulation.histories import Times, check_tables
from tests.simulation.wild import name_of
from tests.simulation.world.function import MARKS, RULES, SEEN

Identity = tuple[str | None, tuple[int, ...]]
"""The attempt whose cut a version holds, and the edits that were made to it since."""


WATCHFULNESS = (0.3, 1.0)
"""So many of the versions are read as soon as they are there. Lives, others and the end read versions in any case."""


@dataclass(frozen=True)
class Truth:
    """What a version holds.

    All other keyed states follow from the histories.
    """

    histories: dict[str, list[list[Any]]] = field(default_factory=dict)
    notes: dict[str, int] = field(default_factory=dict)
    seen: Counter[Any] = field(default_factory=Counter)
    marks: tuple[int, ...] = ()
    rules: dict[str, int] = field(default_factory=dict)
    places: Places = field(default_factory=dict)
    in_flight: dict[tuple[Any, str | None], tuple[Any, ...]] = field(default_factory=dict)
    accepted: frozenset[int] = frozenset()
    attempts: dict[tuple[str, Any], int] = field(default_factory=dict)
    outputs: tuple[Any, ...] = ()

    def edited(self, mark: int, notes: dict[str, int]) -> Truth:
        """Return what an edit makes of it."""
        return replace(self, notes=notes, marks=(mark,))


def in_flight_of(element: Any) -> tuple[Any, ...]:
    """Return what must stay as it is of an element, wherever it is stored."""
    outputs = None if element.outputs is None else [tuple(output) for output in element.outputs]
    return element.completed, element.attempt, element.timestamp, outputs


class Oracle:
    """Knows what was promised to whom, and compares it with what is there.

    Attributes
    ----------
    truths : dict
        What each attempt would commit.
    acknowledged : dict of int to str
        The id of the snapshot whose commit returned, by version.
    refused : set of str
        Attempts that were told that they have no effect.
    """

    def __init__(
        self, seed: int, states: Sequence[StateDescriptor], store: SnapshotStore, times: Callable[[], Times]
    ) -> None:
        self._seed = seed
        self._states = states
        self._draw = random.Random(f"{seed}/oracle")
        self._watches = self._draw.choice(WATCHFULNESS)
        self._store = store
        self._times = times
        self.truths: dict[Identity, Truth] = {(None, ()): Truth()}
        self.acknowledged: dict[int, str] = {}
        self.refused: set[str] = set()
        self.pinned: set[int] = set()
        self.newest = 0
        self._known: dict[int, str] = {}
        self._whole: set[str] = set()
        self._compared: set[frozenset[DataFile]] = set()

    def acknowledge(self, snapshot: Snapshot) -> None:
        """Note that somebody was told that the version is theirs."""
        assert snapshot.version not in self.acknowledged, "two writers were told that they have the version"
        self.acknowledged[snapshot.version] = snapshot.manifest.snapshot_id
        self.newest = max(self.newest, snapshot.version)

    def truth_of(self, snapshot: Snapshot) -> Truth:
        """Return what a version must hold."""
        return self.truths[attempt_of(snapshot.manifest), marks_of(snapshot)]

    def check(self) -> None:
        """The newest snapshot is whole and is what was promised; each version continues the one before."""
        latest = self._store.latest()
        assert (0 if latest is None else latest.version) >= self.newest
        if latest is None:
            return
        self.newest = latest.version
        live = self.live()
        assert live[-1] == latest.version, f"the newest is {latest.version}, of {live}"
        for version in live:
            if version not in self._known:
                self._look_at(self._store.load(version).manifest)
        if latest.manifest.snapshot_id not in self._whole:
            self._whole.add(latest.manifest.snapshot_id)
            # The same files at another parallelism take as long to read as others, and there are many such versions.
            files = frozenset(latest.manifest.files)
            if self._draw.random() < (0.3 if files in self._compared else self._watches):
                self.check_version(latest)
            self._compared.add(files)

    def _look_at(self, manifest: Manifest) -> None:
        version, before = manifest.version, self._known.get(manifest.version - 1)
        promised = self.acknowledged.get(version, manifest.snapshot_id)
        assert manifest.snapshot_id == promised, f"version {version} is not the one that was acknowledged"
        assert attempt_of(manifest) not in self.refused, f"{attempt_of(manifest)} was refused, and is there"
        assert before in (None, manifest.parent_id), f"version {version} does not continue the one before"
        assert self._known.setdefault(version, manifest.snapshot_id) == manifest.snapshot_id, f"{version} has changed"

    def live(self) -> list[int]:
        """Return the versions that must be there and whole."""
        mark = expired_version(self._store.folder)
        versions = self._store.versions()
        assert self.pinned <= set(versions), f"of the pinned {self.pinned}, only {versions} are there"
        return [version for version in versions if version > mark or version in self.pinned]

    def check_all(self) -> None:
        """Every version that remains has its files; look at every byte of the newest, and at the content of any."""
        self.check()
        live = self.live()
        stored = {file.name: file.bytes for file in self._store.folder.files("data")}
        for version in live:
            manifest = self._store.load(version).manifest
            self._look_at(manifest)
            missing = [one.path for one in manifest.objects if stored.get(one.path) != one.bytes]
            assert not missing, f"version {version} is not whole: it has no {missing}"
        assert self._store.verify(live[-1]).ok, f"version {live[-1]} is not whole"
        self.check_version(self._store.load(self._draw.choice(live)))

    def check_version(self, snapshot: Snapshot) -> None:
        """Restore a version at any parallelism, and compare all that it has with the truth."""
        truth, manifest = self.truth_of(snapshot), snapshot.manifest
        parallelism = self._draw.randint(1, min(4, manifest.max_parallelism))
        stored = (*self._states, *TIMER_STATES.values())
        tables: dict[str, dict[Any, Any]] = {state.name: {} for state in stored}
        seen, in_flight, firing = Counter[Any](), {}, set()
        for index in range(parallelism):
            share = snapshot.restore(index, parallelism)
            for name, groups in share.states(stored, self._times().now).items():
                for key_group, group in groups.items():
                    for identity, value in group.load().items():
                        key = original_of(identity)
                        owner = key_group_of(key, manifest.max_parallelism, manifest.hash)
                        assert owner == key_group in share.key_groups, f"{key} is in key group {key_group}"
                        assert name_of(key) not in tables[name], f"{key} has two owners"
                        tables[name][name_of(key)] = value
            queue = share.queue()
            check_places(queue, truth.places)
            elements = [element for element in queue.elements if not element.is_watermark]
            firing |= firing_in(elements)
            for element in elements:
                place = name_of(element.key), element.element_id
                assert place not in in_flight, f"{element} is there twice"
                in_flight[place] = in_flight_of(element)
            seen += Counter(tuple(item) for item in share.operator_state(SEEN.name))  # type: ignore[arg-type]
            rules = dict(share.operator_state(RULES.name))  # type: ignore[call-overload]
            assert rules == truth.rules, f"the rules are {rules}, not {truth.rules}"
        self._compare(truth, tables, seen, in_flight)
        check_tables(self._seed, self._states, tables, firing, self._times())

    def _compare(self, truth: Truth, tables: dict[str, Any], seen: Counter[Any], in_flight: dict[Any, Any]) -> None:
        histories = {key: [list(event) for event in history] for key, history in tables["history"].items()}
        assert histories == truth.histories, f"the histories are {histories}, not {truth.histories}"
        assert tables["note"] == truth.notes, f"the notes are {tables['note']}, not {truth.notes}"
        assert seen == truth.seen, f"seen were {seen}, not {truth.seen}"
        assert in_flight == truth.in_flight, f"in flight are {in_flight}, not {truth.in_flight}"


def attempt_of(manifest: Manifest) -> str | None:
    """Return the attempt whose cut a version holds."""
    return None if manifest.source_position is None else manifest.source_position["attempt"]


def marks_of(snapshot: Snapshot) -> tuple[int, ...]:
    """Return the edits that a version has."""
    return tuple(snapshot.restore(0, 1).operator_state(MARKS.name))  # type: ignore[arg-type]
