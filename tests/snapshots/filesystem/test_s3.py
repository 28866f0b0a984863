"""The contract on S3, and what only object stores can do wrong."""

from __future__ import annotations

import pickle
from collections.abc import Iterator

import pytest

from keygroups import ConfigError
from snapshots import BucketMissing, StorageUnavailable, UnsafeFilesystem
from snapshots.filesystem import Folder, ObjectFolder, S3Folder, objects, open_folder, retry
from snapshots.testing.contract import FolderContract
from tests.quick import first_is_quick
from tests.s3_server import S3Server, secrets_in


@pytest.fixture
def folder(s3: S3Server) -> Folder:
    return open_folder(f"{s3.new_root()}/enrich", s3.options)


@pytest.fixture
def untried() -> Iterator[None]:
    """No endpoint has been tried out yet."""
    before = dict(objects._tried)
    objects._tried.clear()
    yield
    objects._tried.clear()
    objects._tried.update(before)


class TestS3Folder(FolderContract):
    rounds = 25
    # Above the 100 MiB from which s3fs puts an object in parts, unless told otherwise.
    large_bytes = 101 * 2**20


@pytest.mark.parametrize("protocol", ["s3", "s3a"])
def test_both_protocols_are_s3(s3: S3Server, protocol: str) -> None:
    uri = s3.new_root().replace("s3://", f"{protocol}://")
    folder = open_folder(uri, s3.options)

    assert isinstance(folder, S3Folder)
    assert folder.uri == uri.replace("s3a://", "s3://")
    assert not folder.is_known_to_be_safe


def test_aws_itself_needs_no_trial() -> None:
    assert open_folder(
        "s3://bucket/a", {"anon": True, "client_kwargs": {"region_name": "eu-west-1"}}
    ).is_known_to_be_safe  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "endpoint", first_is_quick(["https://amazonaws.com.example.org", "https://myamazonaws.com", "http://10.0.0.1"])
)
def test_what_only_looks_like_aws_is_tried_out(endpoint: str) -> None:
    folder = open_folder("s3://bucket/a", {"endpoint_url": endpoint, "anon": True})

    assert isinstance(folder, ObjectFolder)
    assert not folder.is_known_to_be_safe


@pytest.mark.usefixtures("untried")
def test_an_endpoint_is_tried_out_once_for_each_bucket(s3: S3Server) -> None:
    root = s3.new_root()
    one, two = open_folder(f"{root}/one", s3.options), open_folder(f"{root}/two", s3.options)
    one.create("manifests/1", b"1")
    assert s3.requests == {"PUT": 3, "POST": 1}
    assert one.files("probe") == []

    s3.reset()
    two.create("manifests/1", b"1")
    pickle.loads(pickle.dumps(one)).create("manifests/2", b"1")
    assert s3.requests == {"PUT": 2}

    other = open_folder(f"{s3.new_root()}/one", s3.options)
    other.create("manifests/1", b"1")
    assert s3.requests == {"PUT": 3, "POST": 1}


@pytest.mark.usefixtures("untried")
def test_an_endpoint_that_ignores_the_condition_is_refused_before_anything_is_committed(s3: S3Server) -> None:
    folder = open_folder(f"{s3.new_root()}/enrich", s3.options)
    s3.ignores_condition = True
    for _ in range(2):
        with pytest.raises(UnsafeFilesystem, match="create only if absent") as refused:
            folder.create("manifests/1", b"1")
        assert refused.value.uri == folder.uri
        assert not secrets_in(str(refused.value))
    assert folder.files() == []
    assert s3.requests["PUT"] == 2


@pytest.mark.usefixtures("untried")
def test_an_endpoint_that_does_not_know_the_condition_is_refused(s3: S3Server) -> None:
    folder = open_folder(f"{s3.new_root()}/enrich", s3.options)
    s3.answers = [(501, "NotImplemented", False)] * 3

    with pytest.raises(UnsafeFilesystem):
        folder.create("manifests/1", b"1")


@pytest.mark.usefixtures("untried")
def test_a_trial_that_could_not_be_made_is_made_again(s3: S3Server) -> None:
    folder = open_folder(f"{s3.new_root()}/enrich", s3.options)
    s3.answers = [(403, "AccessDenied", False)]
    with pytest.raises(PermissionError):
        folder.create("manifests/1", b"1")

    folder.create("manifests/1", b"1")
    assert folder.names("manifests") == ["1"]


class TestAnswers:
    @pytest.fixture(autouse=True)
    def without_pauses(self, folder: Folder, monkeypatch: pytest.MonkeyPatch) -> list[float]:
        folder.create("tried", b"")
        pauses: list[float] = []
        monkeypatch.setattr(retry, "pause", pauses.append)
        return pauses

    def test_a_conflict_of_conditional_writes_is_retried(
        self, folder: Folder, s3: S3Server, without_pauses: list[float]
    ) -> None:
        s3.answers = [(409, "ConditionalRequestConflict", False)] * 3
        folder.create("manifests/1", b"1")

        assert folder.read("manifests/1") == b"1"
        assert without_pauses == sorted(without_pauses)
        assert len(without_pauses) == 3

    def test_a_conflict_that_never_ends_is_given_up(self, folder: Folder, s3: S3Server) -> None:
        s3.answers = [(409, "ConditionalRequestConflict", False)] * retry.ATTEMPTS_MAX
        with pytest.raises(StorageUnavailable) as given_up:
            folder.create("manifests/1", b"1")

        assert retry.is_transient(given_up.value)
        assert not folder.exists("manifests/1")

    def test_a_refusal_that_does_not_name_the_condition_is_understood(self, folder: Folder, s3: S3Server) -> None:
        s3.answers = [(412, "PreconditionFailed", False)]

        with pytest.raises(FileExistsError):
            folder.create("manifests/1", b"1")

    def test_a_write_whose_reply_was_lost_looks_taken_to_the_client_that_repeats_it(
        self, folder: Folder, s3: S3Server
    ) -> None:
        s3.answers = [(503, "SlowDown", True)]

        with pytest.raises(FileExistsError):
            folder.create("manifests/1", b"1")
        assert folder.read("manifests/1") == b"1"

    def test_no_network_is_an_error_of_the_storage_that_may_pass(self) -> None:
        options = {
            "key": "AKIAEXAMPLE",
            "secret": "kept/to+ourselves",
            "endpoint_url": "http://user:password@127.0.0.1:9",
            "config_kwargs": {"retries": {"max_attempts": 0}, "connect_timeout": 1},
        }
        folder = open_folder("s3://bucket/a", options)
        folder.filesystem.retries = 1
        for use in (lambda: folder.write("data/a", b"1"), lambda: folder.read("data/a"), lambda: folder.names("data")):
            with pytest.raises(StorageUnavailable) as failed:
                use()
            assert retry.is_transient(failed.value)
            assert "password" not in str(failed.value)
            assert not secrets_in(str(failed.value))


@pytest.mark.thorough
def test_a_large_object_is_created_in_one_request_too(folder: Folder, s3: S3Server) -> None:
    """The condition of an upload in parts is another one, which was not tried out."""
    folder.create("tried", b"")
    s3.reset()
    folder.create("manifests/1", bytes(TestS3Folder.large_bytes))

    assert s3.requests == {"PUT": 1}


def test_what_others_did_since_a_listing_is_seen(folder: Folder, s3: S3Server) -> None:
    # Of one process, fsspec makes one filesystem; this stands for that of another.
    other = open_folder(f"s3://{folder.root}", s3.options | {"skip_instance_cache": True})
    folder.write("data/a/1", b"1")
    assert folder.names("data/a") == ["1"]
    assert [file.name for file in folder.files("data")] == ["data/a/1"]
    other.write("data/a/2", b"22")

    assert folder.size("data/a/2") == 2
    assert folder.names("data/a") == ["1", "2"]
    assert [file.bytes for file in folder.files("data")] == [1, 2]


def test_each_operation_is_one_request(folder: Folder, s3: S3Server) -> None:
    folder.create("tried", b"")
    s3.reset()
    for use, expected in (
        (lambda: folder.create("manifests/1", b"12"), "PUT"),
        (lambda: folder.write("data/a/1", b"12"), "PUT"),
        (lambda: folder.replace("latest", b"12"), "PUT"),
        (lambda: folder.read("manifests/1"), "GET"),
        (lambda: folder.read("manifests/1", 0, 1), "GET"),
        (lambda: folder.exists("manifests/1"), "GET"),
        (lambda: folder.exists("manifests/2"), "GET"),
        (lambda: folder.size("data/a/1"), "HEAD"),
        (lambda: folder.names("manifests"), "LIST"),
        (lambda: folder.files(), "LIST"),
        (lambda: folder.delete(["data/a/1", "latest"]), "POST"),
    ):
        use()
        assert s3.requests == {expected: 1}
        s3.reset()


@pytest.mark.parametrize(
    "wrong",
    [{"colour": 1}, {"client_kwargs": {"colour": 1}}, {"config_kwargs": "x"}, {"endpoint_url": "nonsense"}, {"key": 5}],
    ids=str,
)
def test_wrong_options_are_named(s3: S3Server, wrong: dict[str, object]) -> None:
    folder = open_folder(f"{s3.new_root()}/enrich", s3.options | wrong)

    for use in (lambda: folder.names("manifests"), lambda: folder.create("latest", b"")):
        with pytest.raises(ConfigError, match="storage_options") as refused:
            use()
        assert all(name in str(refused.value) for name in wrong)
        assert secrets_in(str(refused.value)) == []


def test_after_an_answer_an_error_is_not_one_of_the_options(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = open_folder(f"{s3.new_root()}/enrich", s3.options)
    folder.write("data/a", b"1")
    monkeypatch.setattr(folder.filesystem, "cat_file", None)

    with pytest.raises(TypeError):
        folder.read("data/a")


def test_a_bucket_that_does_not_exist_is_named(s3: S3Server) -> None:
    folder = open_folder("s3://bucket-of-nobody/operators/enrich", s3.options)

    for use in (folder.create, folder.create_untried, folder.write, folder.replace):  # type: ignore[attr-defined]
        with pytest.raises(BucketMissing, match="s3://bucket-of-nobody/operators/enrich"):
            use("latest", b"")
