"""Who owns an operator, and how the others learn that they do not."""

from __future__ import annotations

import dataclasses
import pickle
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from keygroups import ConfigError
from snapshots import (
    Claim,
    CommitConflict,
    IncompatibleSnapshot,
    IncompleteSnapshot,
    PendingSnapshot,
    SnapshotStore,
    WriterFenced,
)
from snapshots.filesystem import Folder, open_folder
from snapshots.testing import FolderWrapper
from snapshots.testing.wrappers import Operation
from tests.snapshot_kit import COUNT, PROFILE, G, content_of, parts, record, restored


def count(number: int) -> list[Any]:
    return parts({"count": {"a": number}})


def newest_count(store: SnapshotStore) -> object:
    latest = store.latest()
    assert latest is not None
    return content_of(latest)["count"].get("a")


def test_a_claim_is_a_version_with_the_content_of_the_newest(store: SnapshotStore) -> None:
    before = store.write(parts({"count": {"a": 1}}, in_flight=[record("a", 0)]), source_position={"batch": 7})
    claim = store.claim()

    latest = store.latest()
    assert latest is not None
    assert latest.manifest == claim.snapshot.manifest
    same = {"version", "snapshot_id", "parent_version", "parent_id", "created_at", "operation", "metrics"}
    for field in dataclasses.fields(before.manifest):
        if field.name not in same:
            assert getattr(latest.manifest, field.name) == getattr(before.manifest, field.name)
    assert (latest.version, latest.manifest.parent_version, latest.manifest.parent_id) == (
        2,
        1,
        before.manifest.snapshot_id,
    )
    assert [store.load(version).manifest.operation for version in store.versions()] == ["write", "claim"]
    assert content_of(latest)["count"] == {"a": 1}
    assert store.verify().ok


def test_an_owner_writes_one_version_after_the_other(store: SnapshotStore) -> None:
    claim = store.claim(parallelism=2, max_parallelism=G)
    for number in range(5):
        assert claim.write(count(number), source_position={"batch": number}).version == number + 2
        assert newest_count(store) == number
    assert claim.snapshot.source_position == {"batch": 4}
    assert store.verify().ok


def test_the_first_claim_is_an_empty_snapshot_that_can_be_restored(store: SnapshotStore) -> None:
    claim = store.claim(parallelism=3, max_parallelism=G, hash="flink")

    manifest = claim.snapshot.manifest
    assert (manifest.version, manifest.parallelism, manifest.max_parallelism, manifest.hash) == (1, 3, G, "flink")
    assert (manifest.states, manifest.files, manifest.in_flight_count, manifest.source_position) == ((), (), 0, None)
    assert content_of(claim.snapshot) == {"count": {}, "profile": {}}
    assert [claim.snapshot.restore(n).queue().elements for n in range(3)] == [()] * 3
    assert claim.snapshot.in_flight().num_rows == 0
    assert restored(claim.snapshot, 0, descriptors=[COUNT, PROFILE]).cut()
    assert store.repartition(5).parallelism == 5
    assert store.verify().ok


def test_a_first_claim_needs_a_parallelism(store: SnapshotStore) -> None:
    with pytest.raises(ConfigError, match="parallelism"):
        store.claim()
    for wrong in ({"parallelism": 0}, {"parallelism": G + 1, "max_parallelism": G}):
        with pytest.raises(ConfigError, match="parallelism"):
            store.claim(**wrong)
    with pytest.raises(ConfigError, match="hash"):
        store.claim(parallelism=1, hash="md5")
    assert store.versions() == []
    assert store.claim(parallelism=1).snapshot.max_parallelism == 128


@pytest.mark.parametrize("wrong", [{"max_parallelism": 2 * G}, {"hash": "flink"}])
def test_what_is_fixed_is_not_claimed_otherwise(store: SnapshotStore, wrong: dict[str, Any]) -> None:
    store.write(count(1))

    with pytest.raises(IncompatibleSnapshot, match="fixed once a snapshot exists"):
        store.claim(**wrong)
    assert store.versions() == [1]


class TestFencing:
    def test_a_claim_fences_the_one_before(self, store: SnapshotStore) -> None:
        one = store.claim(parallelism=2, max_parallelism=G)
        one.write(count(1))
        two = store.claim()

        with pytest.raises(WriterFenced) as fenced:
            one.write(count(2))
        assert (fenced.value.uri, fenced.value.version, fenced.value.newest) == (store.uri, 3, 3)
        assert two.write(count(3)).version == 4
        assert newest_count(store) == 3

    def test_a_writer_that_was_paused_before_its_commit_has_no_effect(self, store: SnapshotStore) -> None:
        zombie = store.claim(parallelism=2, max_parallelism=G)
        zombie.write(count(1))
        paused = zombie.begin()
        handles = [paused.write_subtask(made) for made in count(2)]
        owner = store.claim()
        for number in range(3, 6):
            owner.write(count(number))

        with pytest.raises(WriterFenced) as fenced:
            paused.commit(handles)
        assert (fenced.value.version, fenced.value.newest) == (3, 6)
        assert newest_count(store) == 5
        assert store.versions() == [1, 2, 3, 4, 5, 6]

    def test_a_paused_writer_is_fenced_before_the_new_owner_wrote_anything(self, store: SnapshotStore) -> None:
        """Without the claim's own version, the zombie would win the next one."""
        store.write(count(1))
        zombie = store.begin()
        handles = [zombie.write_subtask(made) for made in count(2)]
        owner = store.claim()

        with pytest.raises(CommitConflict):
            zombie.commit(handles)
        owner.write(count(3))
        assert newest_count(store) == 3

    def test_a_fenced_claim_stays_fenced(self, store: SnapshotStore) -> None:
        one = store.claim(parallelism=2, max_parallelism=G)
        store.repartition(1)
        for _ in range(2):
            with pytest.raises(WriterFenced):
                one.write(count(1))
        with pytest.raises(WriterFenced):
            one.begin()
        assert store.versions() == [1, 2]

    def test_an_owner_may_ask_before_it_works(self, store: SnapshotStore) -> None:
        one = store.claim(parallelism=2, max_parallelism=G)
        one.check()
        one.write(count(1))
        one.check()
        store.claim()

        with pytest.raises(WriterFenced) as fenced:
            one.check()
        assert (fenced.value.version, fenced.value.newest) == (3, 3)
        with pytest.raises(WriterFenced):
            one.begin()

    def test_the_writer_of_the_first_version_owns_it(self, store: SnapshotStore) -> None:
        owner = Claim(store.write(count(1)))
        assert owner.write(count(2)).version == 2
        store.claim()

        with pytest.raises(WriterFenced):
            owner.write(count(3))

    def test_an_owner_does_not_take_over_what_others_committed(self, store: SnapshotStore) -> None:
        claim = store.claim(parallelism=2, max_parallelism=G)
        store.write(count(1))

        assert claim.begin().version == 2
        assert store.begin().version == 3

    def test_a_commit_that_is_refused_for_its_parts_does_not_fence(self, store: SnapshotStore) -> None:
        claim = store.claim(parallelism=2, max_parallelism=G)
        with pytest.raises(IncompleteSnapshot):
            claim.write(count(1)[:1])

        assert claim.write(count(2)).version == 2

    @pytest.mark.parametrize("owners", [2, 6])
    def test_of_many_owners_the_last_to_claim_writes(self, store: SnapshotStore, owners: int) -> None:
        store.write(count(0))
        start = threading.Barrier(owners)

        def own(number: int) -> tuple[Claim, bool]:
            start.wait()
            claim = store.claim()
            start.wait()
            try:
                claim.write(count(number))
            except WriterFenced:
                return claim, False
            return claim, True

        with ThreadPoolExecutor(owners) as pool:
            outcomes = list(pool.map(own, range(1, owners + 1)))

        claimed = [claim.snapshot.manifest.parent_version if won else claim.snapshot.version for claim, won in outcomes]
        assert sorted(claimed) == list(range(2, owners + 2))
        assert [won for _, won in outcomes].count(True) == 1
        assert claimed[[won for _, won in outcomes].index(True)] == owners + 1
        assert store.versions() == list(range(1, owners + 3))


def test_workers_get_a_part_of_a_claim_that_writes_but_owns_nothing(store: SnapshotStore) -> None:
    claim = store.claim(parallelism=2, max_parallelism=G)
    pending = claim.begin()
    copies = [pickle.loads(pickle.dumps(pending)) for _ in range(2)]
    handles = [copy.write_subtask(made) for copy, made in zip(copies, count(7), strict=True)]

    assert [type(copy) for copy in copies] == [PendingSnapshot] * 2
    assert pending.commit(pickle.loads(pickle.dumps(handles))).version == 2
    assert claim.begin().version == 3
    assert newest_count(store) == 7


def test_two_commits_of_one_claim_are_one_after_the_other(store: SnapshotStore) -> None:
    claim = store.claim(parallelism=2, max_parallelism=G)
    first, second = claim.begin(), claim.begin()
    first.commit([first.write_subtask(made) for made in count(1)])

    with pytest.raises(WriterFenced):
        second.commit([second.write_subtask(made) for made in count(2)])
    assert newest_count(store) == 1


def test_a_claim_beside_a_busy_writer_is_retried(store: SnapshotStore) -> None:
    """The optimistic writer commits between the claim's look and its commit, a few times."""
    store.write(count(0))
    busy = Busy(open_folder(store.uri), store, rounds=3)

    claim = SnapshotStore.on(busy).claim()

    assert claim.snapshot.version == 5
    assert content_of(claim.snapshot)["count"] == {"a": 3}


class Busy(FolderWrapper):
    """A folder in which somebody else commits before each of our commits."""

    def __init__(self, inner: Folder, store: SnapshotStore, rounds: int) -> None:
        super().__init__(inner)
        self.store = store
        self.rounds = rounds

    def around(self, operation: Operation, name: str, data: bytes | None, run: Callable[[], Any]) -> Any:
        if operation == "create" and self.rounds:
            self.rounds -= 1
            latest = self.store.latest()
            assert latest is not None
            self.store.write(count(latest.version))
        return run()
