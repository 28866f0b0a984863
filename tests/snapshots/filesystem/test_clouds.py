"""The contract on Google Cloud Storage and Azure Blob Storage, as far as their clients and stand-ins for the services
can show it; and what a refusal means, on S3 too, because each client makes something else of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from http import HTTPStatus

import pytest
from aiohttp import ServerDisconnectedError
from azure.core.exceptions import ServiceRequestError
from botocore.exceptions import ClientError, EndpointConnectionError
from pyarrow import fs
from requests.exceptions import ProxyError
from s3fs.errors import translate_boto_error

from keygroups import UnstorableValue
from snapshots import BucketMissing, SnapshotStore, StorageRefused, StorageUnavailable, UnsafeFilesystem
from snapshots.filesystem import AzureFolder, Folder, GcsFolder, clients, objects, open_folder, retry
from snapshots.filesystem.clients import client_errors
from snapshots.testing.contract import FolderContract
from tests.loopback import ObjectStore
from tests.quick import in_turn
from tests.s3_server import S3Server
from tests.snapshot_kit import content_of, parts
from tests.snapshots.filesystem.azure_server import KEY, AzureServer, azure_server
from tests.snapshots.filesystem.gcs_server import GcsServer, gcs_server

# gcsfs hands the whole body to aiohttp, which would rather have a file.
pytestmark = pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")


@pytest.fixture(scope="module")
def gcs() -> Iterator[GcsServer]:
    with gcs_server() as server:
        yield server


@pytest.fixture(scope="module")
def azure() -> Iterator[AzureServer]:
    with azure_server() as server:
        yield server


class CloudContract(FolderContract):
    """What races on S3 and on disk have shown takes long here: other processes load the client, large files travel."""

    @pytest.mark.thorough
    def test_one_of_many_racing_writers_wins_and_no_reader_sees_a_part(self, folder: Folder) -> None:
        super().test_one_of_many_racing_writers_wins_and_no_reader_sees_a_part(folder)

    @pytest.mark.thorough
    def test_one_of_many_racing_processes_wins(self, folder: Folder) -> None:
        super().test_one_of_many_racing_processes_wins(folder)

    @pytest.mark.thorough
    def test_a_large_file_is_created_only_once(self, folder: Folder) -> None:
        super().test_a_large_file_is_created_only_once(folder)


class TestGcsFolder(CloudContract):
    rounds = 10
    # Above the 50 MiB from which gcsfs puts an object in parts, unless told otherwise.
    large_bytes = 51 * 2**20

    @pytest.fixture
    def folder(self, gcs: GcsServer) -> Folder:
        return open_folder(f"{gcs.new_root()}/enrich", gcs.options)

    def test_it_is_tried_out(self, folder: Folder) -> None:
        assert isinstance(folder, GcsFolder)
        assert not folder.is_known_to_be_safe


class TestAzureFolder(CloudContract):
    rounds = 10
    # Above the 64 MiB from which Azure's client puts a blob in blocks; their list is put on the same condition.
    large_bytes = 65 * 2**20

    @pytest.fixture
    def folder(self, azure: AzureServer) -> Folder:
        return open_folder(f"{azure.new_root()}/enrich", azure.options)

    def test_it_is_tried_out(self, folder: Folder) -> None:
        assert isinstance(folder, AzureFolder)
        assert not folder.is_known_to_be_safe


@pytest.mark.parametrize("given", ["abfss://state@first.dfs.core.windows.net/jobs/enrich", "az://state/jobs/enrich"])
def test_the_uri_of_a_folder_on_azure_names_its_account(given: str) -> None:
    def uri_in(account: str) -> str:
        return open_folder(given, {"account_key": KEY, **({} if "@" in given else {"account_name": account})}).uri

    assert uri_in("first") == "abfs://state@first.dfs.core.windows.net/jobs/enrich"
    assert open_folder(uri_in("first"), {"account_key": KEY}).uri == uri_in("first")
    if "@" not in given:
        assert uri_in("second") != uri_in("first")


@pytest.fixture(params=in_turn(["gcs", "azure"]))
def stand_in(request: pytest.FixtureRequest, gcs: GcsServer, azure: AzureServer) -> ObjectStore:
    servers: dict[str, ObjectStore] = {"gcs": gcs, "azure": azure}
    return servers[request.param]


def test_a_store_is_written_read_and_cleaned_up(stand_in: ObjectStore) -> None:
    store = SnapshotStore(stand_in.new_root(), "enrich", storage_options=stand_in.options)
    owner = store.claim(parallelism=2, max_parallelism=16)
    for number in range(3):
        owner.write(parts({"count": {"a": number}}))
    report = store.collect_garbage(keep_last=1, min_age=0.0, dry_run=False)

    assert (store.versions(), report.undeleted) == ([4], ())
    assert content_of(owner.snapshot)["count"] == {"a": 2}
    assert store.verify().ok


def test_an_endpoint_that_ignores_the_condition_is_refused(
    stand_in: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objects, "_tried", {})
    store = SnapshotStore(stand_in.new_root(), "enrich", storage_options=stand_in.options)
    stand_in.ignores_condition = True

    with pytest.raises(UnsafeFilesystem):
        store.claim(parallelism=1)
    assert store.versions() == []


class TestRefusals:
    @pytest.fixture(params=in_turn(["s3", "gcs", "azure"]))
    def cloud(self, request: pytest.FixtureRequest, s3: S3Server, gcs: GcsServer, azure: AzureServer) -> ObjectStore:
        servers: dict[str, ObjectStore] = {"s3": s3, "gcs": gcs, "azure": azure}
        return servers[request.param]

    @pytest.fixture
    def folder(self, cloud: ObjectStore) -> Iterator[Folder]:
        folder = open_folder(f"{cloud.new_root()}/enrich", cloud.options)
        folder.create("tried", b"1")
        yield folder
        cloud.reset()

    @pytest.mark.parametrize(
        "code", ["AccessDenied", "ExpiredToken", "InvalidAccessKeyId", "InvalidClientTokenId", "SignatureDoesNotMatch"]
    )
    def test_a_refusal_is_known_by_the_text_of_arrows_client(self, s3: S3Server, code: str) -> None:
        client = fs.S3FileSystem(access_key="k", secret_key="s", endpoint_override=s3.url, region="us-east-1")
        s3.refuses = (403, code)

        with pytest.raises(PermissionError), client_errors("bucket/x"):
            client.open_output_stream("bucket/x")

    @pytest.mark.parametrize(("status", "code"), [(401, "Unauthorized"), (403, "AccessDenied")])
    def test_what_may_not_be_done_is_refused_and_not_tried_again(
        self, folder: Folder, cloud: ObjectStore, status: int, code: str
    ) -> None:
        cloud.refuses = (status, code)

        for use in (*writes_of(folder), *reads_of(folder), lambda: folder.delete(["tried"])):
            with pytest.raises(StorageRefused) as refused:
                use()
            assert not retry.is_transient(refused.value)
            assert refused.value.uri == folder.uri
            assert KEY not in str(refused.value)

    def test_a_container_that_is_missing_is_named_by_writes_and_is_empty_for_reads(
        self, folder: Folder, cloud: ObjectStore
    ) -> None:
        cloud.refuses = (404, "ContainerNotFound" if isinstance(cloud, AzureServer) else "NoSuchBucket")

        for write in writes_of(folder):
            with pytest.raises(BucketMissing, match=folder.uri):
                write()
        for read in (lambda: folder.read("tried"), lambda: folder.open("tried").read(), lambda: folder.size("tried")):
            with pytest.raises(FileNotFoundError):
                read()
        assert (folder.names(""), folder.files(), folder.exists("tried")) == ([], [], False)

    def test_a_delete_that_fails_may_succeed_later(self, folder: Folder, cloud: ObjectStore) -> None:
        cloud.refuses = (409, "OperationAborted")

        with pytest.raises(OSError) as failed:  # noqa: PT011  # of S3, it is an OSError with a number
            folder.delete(["tried"])
        assert retry.is_transient(failed.value)


def writes_of(folder: Folder) -> list[Callable[[], object]]:
    return [
        lambda: folder.create("manifests/1", b"1"),
        lambda: folder.write("data/1", b"1"),
        lambda: folder.replace("latest", b"1"),
    ]


def reads_of(folder: Folder) -> list[Callable[[], object]]:
    return [
        lambda: folder.read("tried"),
        lambda: folder.open("tried").read(),
        lambda: folder.size("tried"),
        lambda: folder.exists("tried"),
        lambda: folder.names("data"),
        lambda: folder.files("data"),
        lambda: folder.sizes("data/"),
    ]


def said_by_s3(status: int) -> Exception:
    answer = {"Error": {"Code": HTTPStatus(status).phrase}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return translate_boto_error(ClientError(answer, "PutObject"))  # type: ignore[no-any-return]


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
def test_what_a_busy_service_or_its_proxy_answers_may_pass(status: int) -> None:
    with pytest.raises(StorageUnavailable) as failed, client_errors("bucket/name"):
        raise said_by_s3(status)
    assert retry.is_transient(failed.value)


@pytest.mark.parametrize(
    ("code", "means"),
    [
        ("AccessDeniedException", PermissionError),
        ("UnrecognizedClientException", PermissionError),
        ("ExpiredTokenException", PermissionError),
        ("ThrottlingException", StorageUnavailable),
        ("ProvisionedThroughputExceededException", StorageUnavailable),
    ],
)
def test_services_of_aws_say_with_a_code_and_not_with_the_status_what_they_mean(code: str, means: type) -> None:
    answer = {"Error": {"Code": code, "Message": "no"}, "ResponseMetadata": {"HTTPStatusCode": 400}}
    with pytest.raises(means, match=code), client_errors("sales.orders"):
        raise ClientError(answer, "UpdateTable")  # type: ignore[arg-type, unused-ignore]


def test_what_a_service_does_not_know_does_not_pass() -> None:
    with pytest.raises(OSError, match="Not Implemented") as failed, client_errors("bucket/name"):
        raise said_by_s3(501)
    assert not retry.is_transient(failed.value)


@pytest.mark.parametrize(
    "said",
    [
        EndpointConnectionError(endpoint_url="http://127.0.0.1:9"),
        ServiceRequestError("Cannot connect to host"),
        ServerDisconnectedError(),
        ProxyError(),
    ],
    ids=lambda said: type(said).__module__,
)
def test_no_network_is_a_failure_that_may_pass_whatever_the_client_says(said: Exception) -> None:
    with pytest.raises(StorageUnavailable) as failed, client_errors("bucket/name"):
        raise said
    assert retry.is_transient(failed.value)


@pytest.mark.parametrize("text", ["AWS Error ACCESS_DENIED", "(HTTP status 503)", "Generic S3 error"])
@pytest.mark.parametrize("error", [lambda text: UnstorableValue("str", "a row", text), RuntimeError])
def test_what_a_row_says_is_no_answer_of_a_client(error: Callable[[str], Exception], text: str) -> None:
    said = error(text)

    with pytest.raises(type(said)) as raised, client_errors("bucket/name"):
        raise said
    assert raised.value is said


def test_a_long_answer_is_shortened(azure: AzureServer) -> None:
    folder = open_folder(f"{azure.new_root()}/enrich", azure.options)
    azure.refuses = (HTTPStatus.CONFLICT, "X" * 4_000)

    with pytest.raises(StorageUnavailable) as failed:
        folder.read("manifests/1")
    assert len(str(failed.value)) < 2 * clients._REASON_MAX


def test_a_secret_is_hidden_before_a_text_is_cut() -> None:
    said = f"{'x' * (clients._REASON_MAX - 20)} http://user:secret-and-more@host/"

    assert "secret" not in clients.reason_of(OSError(said))
