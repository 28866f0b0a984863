"""Faults of storage and processes: a table of every fault at every operation, and random runs of many processes.

`--seeds 5000` runs more of the random ones, `--seed 17` replays one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache

import pytest

from snapshots import CommitOutcomeUnknown, SnapshotStore
from snapshots.filesystem import open_folder, retry
from snapshots.testing import Crash, Fault, FaultyFolder
from snapshots.versions import HINT
from tests.quick import first_is_quick
from tests.simulation.storage import Storage
from tests.snapshot_kit import G, content_of, forget_stores, parts

STEPS = 25


@pytest.fixture(autouse=True)
def without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "pause", lambda seconds: None)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    seed = metafunc.config.getoption("--seed")
    seeds = range(max(1, metafunc.config.getoption("--seeds") // 20)) if seed is None else [seed]
    if "seed" in metafunc.fixturenames:
        metafunc.parametrize("seed", seeds)


def test_every_promise_holds_among_many_processes(seed: int) -> None:
    storage = Storage(seed)
    try:
        for _ in range(STEPS):
            storage.step()
            storage.check()
        storage.check_all()
    except BaseException:
        print(f"replay with --seed {seed}: {storage.outcomes}")  # noqa: T201
        raise


@pytest.mark.thorough
def test_the_random_runs_meet_everything() -> None:
    wanted = {"acknowledged", "conflict", "crash", "unknown", "storage failed", "expired", "removed", "too late"}
    outcomes: Counter[str] = Counter()
    for seed in range(1000):
        storage = Storage(seed)
        for _ in range(STEPS):
            storage.step()
        outcomes += storage.outcomes
        forget_stores()
        if wanted <= set(outcomes):
            return

    assert wanted <= set(outcomes)


# Every fault at every operation.

Scenario = Callable[[SnapshotStore], object]
OLD, NEW = {"a": 3}, {"a": 4}


def write(store: SnapshotStore) -> None:
    store.write(parts({"count": NEW}))


def write_claimed(store: SnapshotStore) -> None:
    store.claim().write(parts({"count": NEW}))


def rescale(store: SnapshotStore) -> None:
    store.repartition(5)


def claim(store: SnapshotStore) -> None:
    store.claim()


def collect(store: SnapshotStore) -> None:
    store.collect_garbage(keep_last=1, min_age=0.0, dry_run=False)


def pin(store: SnapshotStore) -> None:
    store.pin(2)


def write_without_a_hint(store: SnapshotStore) -> None:
    """From a listing, of which the second one may be stale."""
    store.versions()
    store.write(parts({"count": NEW}))


SCENARIOS: list[tuple[Scenario, bool]] = [
    (write, True),
    (write_claimed, True),
    (rescale, True),
    (claim, True),
    (collect, True),
    (pin, True),
    (write_without_a_hint, False),
]


def prepared(has_hint: bool) -> SnapshotStore:
    """Return a store with three versions, and files of a commit that never was."""
    folder = open_folder(f"memory://{next(_names)}/enrich")
    for name, data in history().items():
        if has_hint or name != HINT:
            folder.write(name, data)
    return SnapshotStore.on(folder)


@cache
def history() -> dict[str, bytes]:
    store = SnapshotStore("memory://history", "enrich")
    for number in (1, 2, 3):
        store.write(parts({"count": {"a": number}}))
    pending = store.begin()
    for part in parts({"count": {"a": 99}}):
        pending.write_subtask(part)
    folder = open_folder(store.uri)
    return {file.name: folder.read(file.name) for file in folder.files()}


_names: Iterator[str] = (f"faults-{number}" for number in range(10**9))


def run(
    scenario: Scenario, store: SnapshotStore, faults: dict[int, Fault]
) -> tuple[FaultyFolder, BaseException | None]:
    folder = FaultyFolder(open_folder(store.uri), faults)
    try:
        scenario(SnapshotStore.on(folder))
    except (Crash, OSError, CommitOutcomeUnknown) as error:
        return folder, error
    return folder, None


@pytest.mark.parametrize("fault", first_is_quick(Fault), ids=lambda fault: fault.name.lower())
@pytest.mark.parametrize(
    ("scenario", "has_hint"), first_is_quick(SCENARIOS), ids=[scenario.__name__ for scenario, _ in SCENARIOS]
)
def test_after_a_fault_the_newest_snapshot_is_the_old_or_the_new_one(
    scenario: Scenario, has_hint: bool, fault: Fault
) -> None:
    """A conflict would fail the test: there is nobody else."""
    folder, error = run(scenario, prepared(has_hint), {})
    assert error is None
    for number in range(len(folder.operations)):
        store = prepared(has_hint)
        faulty, error = run(scenario, store, {number: fault})
        if error is None:
            check_done(scenario, store)
        check_newest(store)
        faulty.settle()
        check_newest(store)
        check_recovery(store)
        forget_stores()


def check_done(scenario: Scenario, store: SnapshotStore) -> None:
    latest = store.latest()
    assert latest is not None
    if scenario in {write, write_claimed, write_without_a_hint}:
        assert content_of(latest)["count"] == NEW
    if scenario is rescale:
        assert latest.parallelism == 5
    if scenario is claim:
        assert latest.version == 4
    if scenario is pin:
        assert store.pinned() == [2]


def check_newest(store: SnapshotStore) -> None:
    latest = store.latest()
    assert latest is not None
    assert latest.version >= 3
    for version in store.versions():
        assert store.verify(version).ok or version < 3
    assert content_of(latest)["count"] in (OLD, NEW)
    assert store.verify().ok


def check_recovery(store: SnapshotStore) -> None:
    """A new coordinator takes over, writes and cleans up."""
    owner = store.claim()
    owner.write(parts({"count": {"a": 5}}))
    for version in store.pinned():
        assert store.verify(version).ok
        store.unpin(version)
    report = store.collect_garbage(keep_last=1, min_age=0.0, dry_run=False)

    assert report.undeleted == ()
    assert store.versions() == [owner.snapshot.version]
    assert content_of(owner.snapshot)["count"] == {"a": 5}
    assert store.verify().ok
    folder = open_folder(store.uri)
    named = {file.path for file in owner.snapshot.manifest.files}
    assert {file.name for file in folder.files("data")} == named
    assert owner.snapshot.max_parallelism == G
