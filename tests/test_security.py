"""What docs/explanation/security.md says and no other test shows: what code may load, and attacks on a folder."""

from __future__ import annotations

import ast
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from snapshots import SnapshotCorrupted, SnapshotStore
from snapshots.format.manifest_head import Head
from snapshots.format.manifest_schema import CHANNELS_MAX, FILES_MAX
from snapshots.format.sealing import canonical, sealed
from tests.snapshots.format.golden import generate
from tests.test_tidy import trees

CODE_LOADERS = {"pickle", "cloudpickle", "marshal", "shelve", "dill", "joblib", "runpy"}
"""Modules with which bytes can become code."""

UNPICKLE: dict[str, str] = {
    "async_op/hosting/process/__main__.py": "standard input, from the process that started this one",
    "async_op/hosting/process/launch.py": "what the process answers that it started",
    "async_op/hosting/process/host_process.py": "the factory, from the process that started this one",
    "async_op/hosting/process/fork_server.py": "a folder that only this user can open, and what the driver sent",
    "async_op/hosting/wire/frames.py": "messages between sides that have proved to know the run's secret",
    "async_op/job/processes/__main__.py": "standard input, from the process that started this one",
    "async_op/job/processes/child_process.py": "what the parent has told it, over standard input or by its fork server",
    "async_op/job/processes/child_loop.py": "messages of the parent, over a pair of sockets",
    "async_op/job/processes/launch.py": "makes pickles, loads none",
    "async_op/job/processes/distributed_chain.py": "makes pickles, loads none",
    "async_op/job/processes/messages.py": "messages of processes of this run, over pairs of sockets",
    "async_op/spark/bounded.py": "the result of a job of its own",
    "async_op/spark/task/operator_factory.py": "what the driver sent with its task, or a feeder with the secret",
    "async_op/spark/task/epoch_task.py": "what the driver sent with its task",
    "async_op/spark/task/pickling.py": "makes pickles, loads none",
    "async_op/spark/task/report.py": "the result of a job of its own",
    "async_op/spark/task/host_access.py": "what the driver sent with its task",
    "async_op/spark/task/newest_snapshot.py": "what the driver sent with its task",
    "async_op/spark/worker_python.py": "the function of the driver, in a task of its own",
    "snapshots/testing/contract.py": "a test of users' storages: its own pickle of a folder",
}
"""Modules that have to do with pickles, and whose."""

EXPRESSIONS: dict[str, str] = {
    "async_op/connectors/arrow_input.py": "one display of a dict, of literals that `repr` has made of column names",
    "async_op/spark/rows/arrow_outputs.py": "one check of a row, of numbers and fixed text",
}
"""Modules that evaluate an expression of their own, of what it is made."""


def loaders(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from (alias.name for alias in names if alias.name.partition(".")[0] in CODE_LOADERS)
            case ast.ImportFrom(module=str(module), names=names):
                names_of = {module.partition(".")[0], *(alias.name for alias in names)}
                yield from names_of & CODE_LOADERS


def test_pickles_are_loaded_only_where_their_sender_is_known() -> None:
    users = {name for name, tree in trees().items() if any(loaders(tree))}

    assert users == set(UNPICKLE)


def test_nothing_that_reads_a_snapshot_can_run_code_from_it() -> None:
    for name, tree in trees().items():
        called = {
            node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        }
        assert not called & {"eval", "exec", "compile", "__import__"} or name in EXPRESSIONS, name
        if name.startswith(("keygroups/", "snapshots/")) and not name.startswith("snapshots/testing/"):
            assert not list(loaders(tree)), name


def test_no_process_gets_a_shell() -> None:
    for name, tree in trees().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.keyword):
                assert node.arg != "shell", name
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "os":
                assert node.attr not in ("system", "popen"), name


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shutil.copytree(generate.FOLDER / "v1", tmp_path / "golden")
    return tmp_path / "golden"


@pytest.mark.parametrize(
    ("field", "entries"), [("files", FILES_MAX + 1), ("channels", CHANNELS_MAX + 1), ("states", 10_001)]
)
def test_a_manifest_with_too_many_entries_is_refused(folder: Path, field: str, entries: int) -> None:
    stored = next(folder.rglob("*.json")).read_bytes()
    body = json.loads(stored)["manifest"] | {field: [0] * entries}

    with pytest.raises(SnapshotCorrupted, match=f"{field} has {entries} items"):
        Head.from_bytes(sealed(canonical(body)), "manifest")


def test_a_manifest_that_nests_without_end_is_refused() -> None:
    with pytest.raises(SnapshotCorrupted, match="not a manifest"):
        Head.from_bytes(b'{"manifest":' + b"[" * 1_000_000, "manifest")


def test_a_link_in_the_place_of_a_data_file_shows_nothing(folder: Path, tmp_path: Path) -> None:
    store = SnapshotStore(folder, generate.OPERATOR_ID)
    file = store.load(1).manifest.files_of("keyed", state="count")[0]
    path, secret = folder / generate.OPERATOR_ID / file.path, tmp_path / "secret"
    secret.write_bytes(b"password" * file.bytes)
    path.unlink()
    path.symlink_to(secret)

    with pytest.raises(SnapshotCorrupted) as refused:
        store.load(1).to_arrow("count")
    assert "password" not in str(refused.value)
    assert not store.verify(1).ok


def test_garbage_collection_removes_links_and_never_what_they_point_to(folder: Path, tmp_path: Path) -> None:
    precious = tmp_path / "elsewhere" / "precious"
    precious.parent.mkdir()
    precious.touch()
    os.utime(precious, (0, 0))
    data = folder / generate.OPERATOR_ID / "data"
    (data / "link").symlink_to(precious)
    (data / "folder").symlink_to(precious.parent)

    report = SnapshotStore(folder, generate.OPERATOR_ID).collect_garbage(keep_last=1, min_age=0.0, dry_run=False)

    assert "data/link" in report.files
    assert not (data / "link").is_symlink()
    assert precious.exists()


def test_no_link_is_written_through(folder: Path, tmp_path: Path) -> None:
    """The objects that are written again and again are replaced; all others are created once."""
    target = tmp_path / "target"
    target.write_text("of somebody else")
    store = SnapshotStore(folder, generate.OPERATOR_ID)
    own = folder / generate.OPERATOR_ID
    (own / "latest").unlink(missing_ok=True)
    (own / "latest").symlink_to(target)
    (own / "manifests" / f"{3:020d}.json").symlink_to(tmp_path / "nowhere")

    for name in ("latest", f"manifests/{3:020d}.json", "data/x"):
        (own / "data" / "x").unlink(missing_ok=True)
        (own / "data" / "x").symlink_to(target)
        for write in (store.folder.create, store.folder.write):
            with pytest.raises(FileExistsError):
                write(name, b"1")
    store.folder.replace("latest", b"1")

    assert target.read_text() == "of somebody else"
    assert not (tmp_path / "nowhere").exists()
