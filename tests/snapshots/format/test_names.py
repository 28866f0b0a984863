"""Names that become paths: refused where they are made and where they are read, so that none leads out of a folder."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from keygroups import ConfigError, ListState, ValueState
from keygroups.ranges import KeyGroupRange
from snapshots import OperatorStateCut, SnapshotCorrupted, SnapshotStore
from snapshots.filesystem import Folder, open_folder
from snapshots.format.files import FileLabel, FileWriter
from snapshots.format.manifest import manifest_name
from snapshots.format.operator_state import OPERATOR_STATE_SCHEMA
from snapshots.format.parquet import ParquetEncoder
from snapshots.format.subtask import SubtaskSnapshot
from tests.snapshot_kit import G, parts
from tests.snapshots.format.test_manifest import sealed

PATHS = ["../../x", "a/../../../../../escaped", "/absolute", "a/b", "a\\b", "a\0b", "a\nb"]
ESCAPING = [*PATHS, "..", ".", "", "\ud800"]


@pytest.fixture
def store(tmp_path: Path) -> SnapshotStore:
    return SnapshotStore(tmp_path / "inner" / "state", "enrich")


def everything_below(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*")}


@pytest.mark.parametrize("name", [*PATHS, "", "a*", "[a]", "a?", "x" * 201, None, 7])
def test_an_operator_state_whose_name_is_no_part_of_a_file_name_cannot_be_made(name: Any) -> None:
    with pytest.raises(ConfigError, match="name="):
        OperatorStateCut(name, "split", ())


@pytest.mark.parametrize("name", ["offsets", "kafka-offsets", "offsets.v1", "größe", "a b", "..", "x" * 200])
def test_every_other_operator_state_is_stored_and_comes_back(store: SnapshotStore, name: str) -> None:
    (made,) = parts({}, parallelism=1)
    snapshot = store.write([replace(made, operator_states=(OperatorStateCut(name, "split", (1, 2)),))])

    assert store.verify().ok
    assert snapshot.restore(0).operator_state(name) == [1, 2]


@pytest.mark.parametrize("name", [*ESCAPING, "1a", "a-b", "ä", None, 7])
def test_a_keyed_state_is_named_by_a_word(name: Any) -> None:
    for kind in (ValueState, ListState):
        with pytest.raises(ConfigError, match="name="):
            kind(name)


@pytest.mark.parametrize("name", [*ESCAPING, ".hidden", "a*", None, 7])
def test_an_operator_has_a_folder_of_its_own(tmp_path: Path, name: Any) -> None:
    with pytest.raises(ConfigError, match="operator_id="):
        SnapshotStore(tmp_path, name)


@pytest.mark.parametrize("attempt_id", ["..", "../../x", "a/../../../x", "", "/absolute"])
def test_an_attempt_writes_below_its_folder_only(tmp_path: Path, attempt_id: str) -> None:
    folder = open_folder(str(tmp_path / "inner" / "enrich"))
    encoder = ParquetEncoder(OPERATOR_STATE_SCHEMA)

    with FileWriter(folder, attempt_id) as files, pytest.raises(ConfigError):
        files.write(FileLabel(kind="output", subtask=0, version=1), "output-0", KeyGroupRange(0, 1), encoder)
    assert everything_below(tmp_path) == set()


@pytest.mark.parametrize("version", ["../../../x", "1", -1, 0, 1.0, True, 10**20])
def test_a_version_is_a_number_before_it_is_a_name(store: SnapshotStore, version: Any, tmp_path: Path) -> None:
    store.write(parts({}))
    before = everything_below(tmp_path)

    uses: list[Callable[[Any], object]] = [store.load, store.pin, store.unpin]
    for use in uses:
        with pytest.raises(ConfigError, match="version="):
            use(version)
    assert everything_below(tmp_path) == before


@pytest.mark.parametrize("name", ["²", "٣", "7", "x", "0" * 20, "٣" * 20])
def test_what_is_no_version_is_no_pin_and_no_mark(store: SnapshotStore, name: str) -> None:
    folder = store.write(parts({})).folder
    folder.create(f"pins/{name}", b"")
    folder.create(f"expired/{name}", b"")
    folder.create(f"manifests/{name}.json", b"")

    assert store.pinned() == []
    assert store.versions() == [1]
    assert store.collect_garbage(min_age=0, dry_run=False).retained == (1,)


ACCESSES: dict[str, Callable[[Folder, str], object]] = {
    "create": lambda folder, name: folder.create(name, b"1"),
    "write": lambda folder, name: folder.write(name, b"1"),
    "replace": lambda folder, name: folder.replace(name, b"1"),
    "read": lambda folder, name: folder.read(name),
    "open": lambda folder, name: folder.open(name),
    "size": lambda folder, name: folder.size(name),
    "exists": lambda folder, name: folder.exists(name),
    "names": lambda folder, name: folder.names(name),
    "files": lambda folder, name: folder.files(name),
    "sizes": lambda folder, name: folder.sizes(name + "/x"),
    "delete": lambda folder, name: folder.delete([name]),
}


@pytest.mark.parametrize("protocol", ["local", "memory"])
@pytest.mark.parametrize("access", ACCESSES)
@pytest.mark.parametrize("name", ["..", "../other", "data/../../other", "/etc", "a\0b"])
def test_no_access_to_a_folder_leaves_it(tmp_path: Path, protocol: str, access: str, name: str) -> None:
    (tmp_path / "other").write_text("of somebody else")
    uri = str(tmp_path / "enrich") if protocol == "local" else f"memory://{uuid.uuid4().hex}/enrich"

    with pytest.raises(ConfigError, match="leads out"):
        ACCESSES[access](open_folder(uri), name)
    assert everything_below(tmp_path) == {"other"}


def change_field(fields: dict[str, Any], *place: str | int, to: object) -> None:
    for step in place[:-1]:
        fields = fields[step]  # type: ignore[index]
    fields[place[-1]] = to  # type: ignore[index]


PLACES: list[tuple[str | int, ...]] = [
    ("operator_id",),
    ("states", 0, "name"),
    ("operator_states", 0, "name"),
    ("files", 0, "path"),
    ("files", 0, "state"),
]


@pytest.mark.parametrize("place", PLACES, ids=str)
@pytest.mark.parametrize("name", [*PATHS, ""])
def test_a_manifest_that_leads_out_of_its_folder_is_refused_whoever_reads_it(
    store: SnapshotStore, tmp_path: Path, place: tuple[str | int, ...], name: str
) -> None:
    """The checksum is right: the manifest was not damaged, but made so."""
    made = [
        SubtaskSnapshot(
            subtask_index=one.subtask_index,
            parallelism=one.parallelism,
            max_parallelism=G,
            hash=one.hash,
            states=one.states,
            operator_states=(OperatorStateCut("offsets", "split", (1,)),),
        )
        for one in parts({"count": {"a": 1}})
    ]
    folder = store.write(made).folder
    fields = json.loads(folder.read(manifest_name(1)))["manifest"]
    change_field(fields, *place, to=name)
    Path(folder.path(manifest_name(1))).write_bytes(sealed(fields))
    before = everything_below(tmp_path)

    uses: list[Callable[[], object]] = [
        store.latest,
        store.begin,
        store.compact,
        lambda: store.repartition(3, max_parallelism=8, rewrite=True),
        lambda: store.copy_to(SnapshotStore(tmp_path, "other")),
        lambda: store.collect_garbage(min_age=0, dry_run=False),
        store.edit,
    ]
    for use in uses:
        with pytest.raises(SnapshotCorrupted, match=str(place[-1])):
            use()
    assert not store.verify().ok
    assert everything_below(tmp_path) == before
