"""The outcome of a commit, when the storage fails or does not answer."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable

import pytest

from snapshots import CommitConflict, CommitOutcomeUnknown, Snapshot, SnapshotCorrupted, SnapshotStore
from snapshots.filesystem import Folder, MemoryFolder, open_folder, retry
from snapshots.format.manifest_head import Head
from snapshots.testing import Fault, FaultyFolder
from tests.snapshot_kit import content_of, new_store, parts

Failure = Callable[["Faulty", str, bytes], None]


class Faulty(MemoryFolder):
    """A folder whose storage fails at the commit, in the given way."""

    def __init__(self, folder: Folder, failure: Failure) -> None:
        super().__init__(folder.filesystem, folder.root)
        self.failure = failure
        self.silent = False

    def create(self, name: str, data: bytes) -> None:
        self.failure(self, name, data)

    def read(self, name: str, start: int | None = None, end: int | None = None) -> bytes:
        if self.silent:
            raise TimeoutError("no answer")
        return super().read(name, start, end)


def lost_reply(folder: Faulty, name: str, data: bytes) -> None:
    MemoryFolder.create(folder, name, data)
    raise ConnectionResetError("reset by peer")


def retried_by_the_client(folder: Faulty, name: str, data: bytes) -> None:
    MemoryFolder.create(folder, name, data)
    MemoryFolder.create(folder, name, data)


def lost_request(folder: Faulty, name: str, data: bytes) -> None:
    raise TimeoutError("no answer")


def gone_silent(folder: Faulty, name: str, data: bytes) -> None:
    MemoryFolder.create(folder, name, data)
    folder.silent = True
    raise TimeoutError("no answer")


def gone_silent_on_the_retry(folder: Faulty, name: str, data: bytes) -> None:
    folder.silent = True
    retried_by_the_client(folder, name, data)


def rival(data: bytes, **changes: object) -> bytes:
    made = Head.from_bytes(data, "ours").manifest
    return Head(dataclasses.replace(made, snapshot_id="of another", **changes)).to_bytes()  # type: ignore[arg-type]


def overtaken(folder: Faulty, name: str, data: bytes) -> None:
    MemoryFolder.create(folder, name, rival(data))
    MemoryFolder.create(folder, name, data)


def overtaken_without_a_reply(folder: Faulty, name: str, data: bytes) -> None:
    MemoryFolder.create(folder, name, rival(data))
    raise TimeoutError("no answer")


def overtaken_by_a_newer_release(folder: Faulty, name: str, data: bytes) -> None:
    body = json.loads(data)["manifest"] | {"format_version": 99}
    text = json.dumps(body, sort_keys=True, separators=(",", ":")).encode()
    digest = hashlib.sha256(text).hexdigest().encode()
    MemoryFolder.create(folder, name, b'{"manifest":%b,"sha256":"%b"}' % (text, digest))
    MemoryFolder.create(folder, name, data)


def half_of_something_is_there(folder: Faulty, name: str, data: bytes) -> None:
    MemoryFolder.create(folder, name, data[: len(data) // 2])
    raise ConnectionResetError("reset by peer")


class TestAmbiguousOutcome:
    def commit(self, store: SnapshotStore, failure: Failure) -> Snapshot:
        healthy = store.begin()
        pending = dataclasses.replace(healthy, folder=Faulty(healthy.folder, failure))
        return pending.commit([pending.write_subtask(made) for made in parts({"count": {"a": 1}})])

    @pytest.mark.parametrize("failure", [lost_reply, retried_by_the_client])
    def test_a_commit_that_took_place_succeeds_though_the_reply_was_lost(self, failure: Failure) -> None:
        store = new_store()
        snapshot = self.commit(store, failure)

        assert store.load(1).manifest == snapshot.manifest
        assert content_of(store.load(1))["count"] == {"a": 1}

    @pytest.mark.parametrize("failure", [overtaken, overtaken_without_a_reply, overtaken_by_a_newer_release])
    def test_a_commit_that_another_won_is_a_conflict(self, failure: Failure) -> None:
        with pytest.raises(CommitConflict):
            self.commit(new_store(), failure)

    @pytest.mark.parametrize(
        "failure", [lost_request, gone_silent, gone_silent_on_the_retry, half_of_something_is_there]
    )
    def test_what_cannot_be_read_back_is_unknown_and_nothing_is_deleted(self, failure: Failure) -> None:
        store = new_store()
        with pytest.raises(CommitOutcomeUnknown) as unknown:
            self.commit(store, failure)

        assert (unknown.value.uri, unknown.value.version) == (store.uri, 1)
        assert len(open_folder(store.uri).names("data")) == 2
        if failure is gone_silent:
            assert content_of(store.load(1))["count"] == {"a": 1}


class TestRetries:
    """Of a commit, with the pauses between its attempts."""

    @pytest.fixture
    def pauses(self, monkeypatch: pytest.MonkeyPatch) -> list[float]:
        pauses: list[float] = []
        monkeypatch.setattr(retry, "pause", pauses.append)
        return pauses

    def failing(self, store: SnapshotStore, operation: str, fault: Fault, times: int) -> SnapshotStore:
        """Return the store on a storage that fails at the first operations of a kind."""
        rehearsal = FaultyFolder(open_folder(new_store().uri), {})
        SnapshotStore.on(rehearsal).write(parts({}))
        first = next(n for n, asked in enumerate(rehearsal.operations) if asked.startswith(operation))
        return SnapshotStore.on(FaultyFolder(open_folder(store.uri), dict.fromkeys(range(first, first + times), fault)))

    @pytest.mark.parametrize("times", [1, 2, 3])
    def test_a_request_that_is_lost_is_sent_again(self, pauses: list[float], times: int) -> None:
        """Each attempt is followed by a look, which is lost as well."""
        store = new_store()
        self.failing(store, "create manifests", Fault.LOST_REQUEST, times).write(parts({}))

        assert store.versions() == [1]
        assert len(pauses) == times
        assert max(pauses) < 1.0

    def test_there_is_an_end_to_it(self, pauses: list[float]) -> None:
        store = new_store()
        with pytest.raises(CommitOutcomeUnknown):
            self.failing(store, "create manifests", Fault.LOST_REQUEST, 100).write(parts({}))

        assert store.versions() == []
        assert len(pauses) == retry.ATTEMPTS_MAX - 1

    def test_what_arrives_late_is_recognised(self, pauses: list[float]) -> None:
        store = new_store()
        snapshot = self.failing(store, "create manifests", Fault.LATE, 1).write(parts({}))

        assert store.load(1).manifest == snapshot.manifest
        assert len(pauses) <= 1

    @pytest.mark.parametrize("error", [PermissionError(13, "not allowed"), OSError(28, "No space left on device")])
    def test_a_refusal_is_not_retried_and_nothing_is_unknown(self, pauses: list[float], error: OSError) -> None:
        store = new_store()

        def refuse(folder: Faulty, name: str, data: bytes) -> None:
            raise error

        pending = dataclasses.replace(store.begin(), folder=Faulty(store.begin().folder, refuse))
        with pytest.raises(type(error)) as refused:
            pending.commit([pending.write_subtask(made) for made in parts({})])
        assert refused.value is error
        assert pauses == []

    def test_what_is_read_back_must_be_what_was_put(self) -> None:
        store = new_store()

        def corrupt(folder: Faulty, name: str, data: bytes) -> None:
            MemoryFolder.create(folder, name, data[:-1] + b"?")

        pending = dataclasses.replace(store.begin(), folder=Faulty(store.begin().folder, corrupt))
        with pytest.raises(SnapshotCorrupted, match="not what was just written"):
            pending.commit([pending.write_subtask(made) for made in parts({})])
