"""A whole store on S3: what it holds, what it asks for, and what goes wrong between it and the server."""

from __future__ import annotations

import json
import pickle
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from snapshots import (
    CommitConflict,
    ManifestMissing,
    Snapshot,
    SnapshotCorrupted,
    SnapshotStore,
    UnsafeFilesystem,
    WriterFenced,
)
from snapshots.cli import app
from snapshots.filesystem import objects, open_folder
from snapshots.versions import HINT
from tests.quick import first_is_quick
from tests.s3_server import S3Server, secrets_in
from tests.snapshot_kit import G, content_of, parts, record


@pytest.fixture
def root(s3: S3Server) -> str:
    return s3.new_root()


@pytest.fixture
def store(s3: S3Server, root: str) -> SnapshotStore:
    return SnapshotStore(root, "enrich", storage_options=s3.options)


def write(store: SnapshotStore, number: int) -> Snapshot:
    return store.write(parts({"count": {"a": number}}, in_flight=[record("a", 0)]), source_position={"batch": number})


def test_a_snapshot_on_s3_is_written_by_workers_and_restored_by_others(store: SnapshotStore) -> None:
    pending = store.begin()
    copies = [pickle.loads(pickle.dumps(pending)) for _ in range(2)]
    made = parts({"count": {"a": 1, "b": 2}, "profile": {"a": {"x": (1,)}}}, in_flight=[record("a", 0)])
    handles = [copy.write_subtask(part) for copy, part in zip(copies, made, strict=True)]
    assert store.versions() == []
    snapshot = pickle.loads(pickle.dumps(pending.commit(handles)))

    assert content_of(snapshot, 5) == {"count": {"a": 1, "b": 2}, "profile": {"a": {"x": (1,)}}}
    assert snapshot.in_flight_count == 1
    assert store.verify().ok
    assert store.repartition(3).parallelism == 3


def test_versions_claims_pins_and_collection(store: SnapshotStore) -> None:
    owner = store.claim(parallelism=2, max_parallelism=G)
    for number in range(2, 8):
        owner.write(parts({"count": {"a": number}}))
    store.pin(3)
    newer = store.claim()
    with pytest.raises(WriterFenced):
        owner.write(parts({}))
    # The server stamps whole seconds, so nothing is older than a second for certain.
    report = store.collect_garbage(keep_last=2, min_age=0.0, dry_run=False)

    assert (report.retained, report.expired, report.undeleted) == ((3, 7, 8), (1, 2, 4, 5, 6), ())
    assert store.versions() == [3, 7, 8]
    newer.write(parts({"count": {"a": 9}}))
    latest = store.latest()
    assert latest is not None
    assert (latest.version, content_of(latest)["count"]) == (9, {"a": 9})
    assert all(store.verify(version).ok for version in store.versions())


@pytest.mark.thorough
def test_one_of_many_racing_writers_wins(store: SnapshotStore) -> None:
    write(store, 1)
    racing = [store.begin() for _ in range(6)]
    handles = [[one.write_subtask(part) for part in parts({"count": {"a": n}})] for n, one in enumerate(racing)]

    def race(number: int) -> bool:
        try:
            racing[number].commit(handles[number])
        except CommitConflict:
            return False
        return True

    with ThreadPoolExecutor(6) as pool:
        won = list(pool.map(race, range(6)))
    latest = store.latest()
    assert latest is not None
    assert won.count(True) == 1
    assert content_of(latest)["count"] == {"a": won.index(True)}


@pytest.mark.thorough
def test_requests_do_not_grow_with_the_history(store: SnapshotStore, s3: S3Server) -> None:
    costs = []
    for versions in (3, 30):
        while len(store.versions()) < versions:
            store.repartition(2) if store.versions() else write(store, 1)
        s3.reset()
        assert store.latest() is not None
        costs.append(dict(s3.requests))
        s3.reset()
        store.repartition(2)
        costs.append(dict(s3.requests))
        s3.reset()

    # The listing is of what expired, and s3fs looks for it twice as long as nothing has.
    assert costs[0] == costs[2] == {"GET": 4, "LIST": 2}
    assert costs[1] == costs[3] == {"GET": 5, "LIST": 6, "PUT": 2}


@pytest.mark.thorough
def test_a_hint_that_is_old_or_unreadable_costs_a_listing_and_one_of_more_is_missed(
    store: SnapshotStore, s3: S3Server
) -> None:
    for number in (1, 2, 3):
        write(store, number)
    folder = open_folder(store.uri, s3.options)
    for hint in (b"1", b"", b"\xff"):
        folder.replace(HINT, hint)
        latest = store.latest()
        assert latest is not None
        assert latest.version == 3
    folder.replace(HINT, b"9")
    with pytest.raises(ManifestMissing, match="version 9"):
        store.latest()


@pytest.mark.parametrize("takes_place", first_is_quick([True, False]))
@pytest.mark.parametrize(
    ("status", "code"),
    first_is_quick(
        [(409, "ConditionalRequestConflict"), (500, "InternalError"), (503, "SlowDown"), (503, "ServiceUnavailable")]
    ),
)
def test_a_commit_survives_answers_that_pass(
    store: SnapshotStore, s3: S3Server, status: int, code: str, takes_place: bool
) -> None:
    write(store, 1)
    s3.answers = [(status, code, takes_place)]

    assert write(store, 2).version == 2
    assert s3.answers == []
    assert store.versions() == [1, 2]
    assert store.verify().ok


def test_a_missing_object_is_named(store: SnapshotStore, s3: S3Server) -> None:
    snapshot = write(store, 1)
    file = snapshot.manifest.files_of("keyed", "count")[0]
    open_folder(store.uri, s3.options).delete([file.path])

    with pytest.raises(SnapshotCorrupted, match="missing") as damaged:
        content_of(snapshot)
    assert damaged.value.path == f"{snapshot.folder.root}/{file.path}"
    assert [problem.path for problem in store.verify().problems] == [damaged.value.path]


def test_on_an_unsafe_endpoint_nothing_is_committed(root: str, s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objects, "_tried", {})
    s3.ignores_condition = True
    store = SnapshotStore(root, "enrich", storage_options=s3.options)

    for use in (lambda: write(store, 1), lambda: store.claim(parallelism=2)):
        with pytest.raises(UnsafeFilesystem):
            use()
    assert store.versions() == []


def test_no_secret_is_in_the_bucket(store: SnapshotStore, s3: S3Server) -> None:
    store.claim(parallelism=2, max_parallelism=G)
    write(store, 2)
    folder = open_folder(store.uri, s3.options)
    for file in folder.files():
        assert secrets_in(file.name + folder.read(file.name).decode("latin-1")) == []


def test_the_command_line_takes_the_options(store: SnapshotStore, s3: S3Server, capsys: Any) -> None:
    write(store, 1)
    options = [f"--storage-option={name}={json.dumps(value)}" for name, value in s3.options.items()]

    with pytest.raises(SystemExit) as ended:
        app.run(["inspect", store.uri, "--json", *options])
    assert ended.value.code == 0
    captured = capsys.readouterr()
    assert '"version": 1' in captured.out
    assert secrets_in(captured.out + captured.err) == []
