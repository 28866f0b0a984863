"""The contract on Google Cloud Storage, as far as gcsfs and a stand-in for the service can show it."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from snapshots import SnapshotStore, UnsafeFilesystem
from snapshots.filesystem import Folder, GcsFolder, objects, open_folder
from snapshots.testing.contract import FolderContract
from tests.snapshot_kit import content_of, parts
from tests.snapshots.filesystem.gcs_server import GcsServer, gcs_server


@pytest.fixture(scope="module")
def gcs() -> Iterator[GcsServer]:
    with pytest.MonkeyPatch.context() as environment, gcs_server() as server:
        # Otherwise gcsfs asks for the kind of the bucket by gRPC, which no stand-in answers.
        environment.setenv("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
        yield server


@pytest.fixture
def root(gcs: GcsServer) -> str:
    gcs.ignores_condition = False
    return f"gs://bucket-{uuid.uuid4().hex}/operators"


# gcsfs hands the whole body to aiohttp, which would rather have a file.
@pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")
class TestGcsFolder(FolderContract):
    rounds = 10
    # Above the 50 MiB from which gcsfs puts an object in parts, unless told otherwise.
    large_bytes = 51 * 2**20

    @pytest.fixture
    def folder(self, gcs: GcsServer, root: str) -> Folder:
        return open_folder(f"{root}/enrich", gcs.options)

    def test_it_is_tried_out(self, folder: Folder) -> None:
        assert isinstance(folder, GcsFolder)
        assert not folder.is_known_to_be_safe


def test_a_store_is_written_read_and_cleaned_up(gcs: GcsServer, root: str) -> None:
    store = SnapshotStore(root, "enrich", storage_options=gcs.options)
    owner = store.claim(parallelism=2, max_parallelism=16)
    for number in range(3):
        owner.write(parts({"count": {"a": number}}))
    report = store.collect_garbage(keep_last=1, min_age=0.0, dry_run=False)

    assert (store.versions(), report.undeleted) == ([4], ())
    assert content_of(owner.snapshot)["count"] == {"a": 2}
    assert store.verify().ok


def test_an_endpoint_that_ignores_the_condition_is_refused(
    gcs: GcsServer, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objects, "_tried", {})
    gcs.ignores_condition = True

    with pytest.raises(UnsafeFilesystem):
        SnapshotStore(root, "enrich", storage_options=gcs.options).claim(parallelism=1)
    assert SnapshotStore(root, "enrich", storage_options=gcs.options).versions() == []
