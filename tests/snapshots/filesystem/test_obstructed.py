"""What is in the way of a snapshot: a folder in place of a file, a file in place of a folder, and rights that lack."""

from __future__ import annotations

import errno
import os
import pickle
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from keygroups import KeyGroupsError
from snapshots import PathObstructed, Snapshot, SnapshotCorrupted, SnapshotStore, StorageFull, StorageRefused
from snapshots.filesystem import open_folder
from snapshots.format.manifest import manifest_name
from tests.quick import first_is_quick
from tests.snapshot_kit import content_of, parts
from tests.snapshots.cli_kit import Cli

ROOT = Path(__file__).parents[3]


@pytest.fixture
def store(tmp_path: Path) -> SnapshotStore:
    store = SnapshotStore(tmp_path, "enrich")
    for number in range(4):
        store.write(parts({"count": {"a": number}}))
    store.pin(1)
    store.collect_garbage(keep_last=2, min_age=0, dry_run=False)
    store.write(parts({"count": {"a": 4}}))
    return store


ARTEFACTS: dict[str, Callable[[Snapshot], str]] = {
    "the newest manifest": lambda snapshot: manifest_name(snapshot.version),
    "an older manifest": lambda snapshot: manifest_name(4),
    "a data file": lambda snapshot: snapshot.manifest.files[0].path,
    "the hint": lambda snapshot: "latest",
    "the mark": lambda snapshot: f"expired/{2:020d}",
    "a pin": lambda snapshot: f"pins/{1:020d}",
}

FOLDERS = ["manifests", "data", "pins", "expired", ""]


def uses(store: SnapshotStore, tmp_path: Path) -> dict[str, Callable[[], object]]:
    return {
        "latest": store.latest,
        "versions": store.versions,
        "verify": store.verify,
        "load": lambda: store.load(5).to_arrow("count"),
        "load an older one": lambda: store.load(4),
        "copy": lambda: store.copy_to(SnapshotStore(tmp_path / "copies", "enrich")),
        "pin": lambda: store.pin(5),
        "unpin": lambda: store.unpin(1),
        "write": lambda: store.write(parts({"count": {"a": 9}})),
        "compact": store.compact,
        "gc": lambda: store.collect_garbage(keep_last=1, min_age=0, dry_run=False),
    }


def run_all(store: SnapshotStore, tmp_path: Path) -> set[type[Exception]]:
    """Use a store in every way: each may do what it is to do, or say what is in the way."""
    refused: set[type[Exception]] = set()
    for use in uses(store, tmp_path).values():
        try:
            use()
        except KeyGroupsError as error:
            refused.add(type(error))
            assert str(error)
    return refused


@pytest.mark.parametrize("artefact", ARTEFACTS)
def test_a_folder_in_place_of_a_file_is_an_error_that_says_so(
    store: SnapshotStore, tmp_path: Path, artefact: str
) -> None:
    snapshot = store.latest()
    assert snapshot is not None
    path = Path(snapshot.folder.path(ARTEFACTS[artefact](snapshot)))
    path.unlink(missing_ok=True)
    path.mkdir()

    run_all(store, tmp_path)


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_file_in_place_of_a_folder_is_an_error_that_says_so(
    store: SnapshotStore, tmp_path: Path, folder: str
) -> None:
    path = tmp_path / "enrich" / folder
    shutil.rmtree(path)
    path.write_text("of somebody else")

    refused = run_all(store, tmp_path)
    assert refused & {PathObstructed, SnapshotCorrupted}
    assert path.read_text() == "of somebody else"


@pytest.mark.parametrize("use", ["latest", "versions", "load", "load an older one", "copy"])
def test_a_file_in_place_of_the_operators_folder_is_no_damage(tmp_path: Path, use: str) -> None:
    """The advice for damage, to move a manifest away, would not help."""
    (tmp_path / "enrich").write_text("a file of another program")
    with pytest.raises(PathObstructed, match="check the URI"):
        uses(SnapshotStore(tmp_path, "enrich"), tmp_path)[use]()


def test_a_folder_in_place_of_a_manifest_or_data_file_is_damage(store: SnapshotStore) -> None:
    folder = open_folder(store.uri)
    data = store.load(5).manifest.files[0].path
    for name in (data, manifest_name(5)):
        Path(folder.path(name)).unlink()
        Path(folder.path(name)).mkdir()
        with pytest.raises(SnapshotCorrupted) as damaged:
            store.load(5).to_arrow("count")
        assert damaged.value.path == folder.path(name)
        (problem,) = store.verify().problems
        assert problem.path == folder.path(name)
        assert "irectory" in problem.what


WRITER = """
import os, pickle, sys
from snapshots import SnapshotStore, StorageRefused
from tests.snapshot_kit import parts
SnapshotStore("memory://", "loads-modules").write(parts({}))
store = SnapshotStore(sys.argv[1], "enrich")
if os.geteuid() == 0:
    os.setgid(65534)
    os.setuid(65534)
uses = {
    "write": lambda: store.write(parts({"count": {"a": 1}})),
    "repartition": lambda: store.repartition(1),
    "pin": lambda: store.pin(1),
    "gc": lambda: store.collect_garbage(keep_last=1, min_age=0, dry_run=False),
    "first": lambda: SnapshotStore(sys.argv[1], "another").write(parts({})),
}
try:
    uses[sys.argv[2]]()
except StorageRefused as error:
    assert error.path.startswith(error.uri.removeprefix("file://"))
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
    print(error)
else:
    print("it was not refused")
"""


@pytest.fixture
def read_only() -> Iterator[Path]:
    """A folder with two versions, in which nobody may write; not below pytest's, which others may not enter."""
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        for _ in range(2):
            SnapshotStore(root, "enrich").write(parts({"count": {"a": 1}}))
        for path in (root, *root.rglob("*")):
            path.chmod(0o555 if path.is_dir() else 0o444)
        yield root
        for path in (root, *root.rglob("*")):
            path.chmod(0o755)


@pytest.mark.parametrize("use", first_is_quick(["write", "repartition", "pin", "gc", "first"]))
def test_a_folder_that_is_read_only_is_named(read_only: Path, use: str) -> None:
    """As another user, because nothing is read-only for root."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", WRITER, str(read_only), use]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, cwd=ROOT)

    assert done.returncode == 0, done.stderr
    assert f"{read_only}/" in done.stdout
    assert "let this process read and write in file://" in done.stdout


def test_the_command_for_a_folder_that_is_read_only_makes_one_that_is_not(
    read_only: Path, tmp_path: Path, cli: Cli
) -> None:
    store = SnapshotStore(read_only, "enrich")
    command = re.search("`keygroups ([^`]*)`", str(StorageRefused(store.uri, "manifests", "read-only")))
    assert command is not None
    assert cli(*command[1].replace("FOLDER", str(tmp_path)).split()).code == 0

    copy = SnapshotStore(tmp_path, "enrich")
    assert content_of(copy.load()) == content_of(store.load())
    assert copy.write(parts({})).version == 4


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_named_and_what_is_committed_stays_whole(
    store: SnapshotStore, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Filesystems may find out when a file is synced only."""

    def full(descriptor: int) -> None:
        raise OSError(number, os.strerror(number))

    newest = store.load().version
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        for use in (lambda: store.write(parts({"count": {"a": 1}})), lambda: store.repartition(1)):
            with pytest.raises(StorageFull, match=f"{os.strerror(number)}.*gc") as refused:
                use()
            assert refused.value.uri == store.uri
            sent = pickle.loads(pickle.dumps(refused.value))
            assert (str(sent), sent.errno) == (str(refused.value), errno.ENOSPC)
    assert store.load().version == newest
    assert store.verify().ok
    assert store.write(parts({"count": {"a": 1}})).version == newest + 1


@pytest.mark.parametrize("target", ["nowhere", "enrich"], ids=["a dangling link", "a link to itself"])
def test_a_link_that_leads_nowhere_is_no_version_of_another_writer(tmp_path: Path, target: str) -> None:
    (tmp_path / "enrich").symlink_to(tmp_path / target)

    with pytest.raises(PathObstructed, match="a link that leads nowhere|symbolic links"):
        SnapshotStore(tmp_path, "enrich").write(parts({"count": {"a": 1}}))


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="no filesystem is at hand that makes no folders")
def test_a_filesystem_that_makes_no_folders_refuses() -> None:
    with pytest.raises(StorageRefused, match="this filesystem makes no folders"):
        SnapshotStore("/proc/self/keygroups", "enrich").write(parts({"count": {"a": 1}}))


def test_the_errors_are_the_builtins_that_callers_catch() -> None:
    assert issubclass(StorageFull, OSError)
    assert issubclass(StorageRefused, PermissionError)
    assert issubclass(PathObstructed, OSError)
