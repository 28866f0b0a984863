"""The command `ls`: the operators under a folder, whatever else is there."""

from __future__ import annotations

from pathlib import Path

import pytest

from snapshots import SnapshotStore
from snapshots.filesystem import open_folder
from snapshots.inspection import operators_in
from snapshots.testing import CountingFolder
from tests.snapshot_kit import parts, record
from tests.snapshots.cli_kit import Cli

CONTENT = {"count": {"a": 1, "b": 2}}


@pytest.fixture
def above(tmp_path: Path) -> Path:
    """A folder with two operators, a folder of something else, a file and a hidden folder."""
    state = tmp_path / "state"
    for name in ("visits", "orders"):
        SnapshotStore(state, name).write(parts(CONTENT, in_flight=[record("a", 0)]))
    SnapshotStore(state, "visits").write(parts(CONTENT))
    (state / "of others").mkdir()
    (state / "notes.txt").write_text("nothing")
    (state / ".hidden").mkdir()
    return state


def test_each_operator_is_listed_with_its_newest_version(cli: Cli, above: Path) -> None:
    report = cli("ls", above, "--json").json

    listed = [(one["operator_id"], one["version"], one["rows"], one["in_flight"]) for one in report["operators"]]
    newest = {name: SnapshotStore(above, name).load().manifest for name in ("orders", "visits")}
    assert listed == [
        ("orders", 1, newest["orders"].rows_total, 1),
        ("visits", 2, newest["visits"].rows_total, 0),
    ]
    assert [one["uri"] for one in report["operators"]] == [SnapshotStore(above, name).uri for name in newest]
    assert all((one["problem"], one["kind"]) == (None, "operator") for one in report["operators"])


def test_people_see_when_and_how_much(cli: Cli, above: Path) -> None:
    answer = cli("ls", above)

    assert (answer.code, answer.err) == (0, "")
    for expected in ("orders", "visits", "ago", "KiB", "in flight"):
        assert expected in answer.out
    assert "of others" not in answer.out


def test_what_cannot_be_read_is_listed_with_its_problem(cli: Cli, above: Path) -> None:
    (above / "orders").rename(above / "orders-2025")
    (above / "visits" / "manifests" / f"{2:020d}.json").write_bytes(b"{}")

    as_json = cli("ls", above, "--json")
    report = as_json.json
    answer = cli("ls", above)

    assert (as_json.code, answer.code) == (1, 1)
    assert [(one["operator_id"], one["version"]) for one in report["operators"]] == [
        ("orders-2025", None),
        ("visits", None),
    ]
    assert "was moved or copied by hand" in report["operators"][0]["problem"]
    assert "unreadable: FolderMoved" in answer.out
    assert "unreadable: SnapshotCorrupted" in answer.out
    assert "keygroups copy" in answer.err


def test_the_root_is_named_as_it_is() -> None:
    root = open_folder("/")

    assert operators_in(root, 0).uri == root.uri == "file:///"
    assert root.child("state").uri == "file:///state"


def test_an_operators_own_folder_is_listed_alone(cli: Cli, above: Path) -> None:
    report = cli("ls", above / "visits", "--json").json

    assert [one["operator_id"] for one in report["operators"]] == ["visits"]


def test_nothing_to_list_is_not_found_and_says_what_there_is(cli: Cli, above: Path, tmp_path: Path) -> None:
    (tmp_path / "others" / "of something else").mkdir(parents=True)
    absent, wrong = cli("ls", tmp_path / "absent"), cli("ls", tmp_path / "others")
    higher = cli("ls", tmp_path)

    assert (absent.code, absent.out) == (3, "")
    assert "empty or absent" in absent.err
    assert (wrong.code, wrong.out) == (3, "")
    assert "its names (1) are of something else: name the folder right above the operators' folders" in wrong.err
    assert (higher.code, higher.out) == (3, "")
    assert f"one level below: `keygroups ls {open_folder(str(above)).uri}`" in higher.err
    (tmp_path / "others" / "notes.txt").write_text("nothing")
    assert "first 1 of 2 names" in cli("ls", tmp_path / "others", "--limit", 1).err


def test_a_listing_is_bounded_and_costs_a_few_small_requests_for_each_folder(cli: Cli, tmp_path: Path) -> None:
    for number in range(5):
        SnapshotStore(tmp_path, f"operator_{number}").write(parts(CONTENT))

    answer = cli("ls", tmp_path, "--limit", 2, "--json")
    folder = CountingFolder(open_folder(str(tmp_path)))
    operators_in(folder, 2)

    assert [one["operator_id"] for one in answer.json["operators"]] == ["operator_0", "operator_1"]
    assert (answer.json["names"], answer.json["looked_into"]) == (5, 2)
    assert "looked into 2 of 5 names; for more: --limit" in cli("ls", tmp_path, "--limit", 2).err
    assert sum(folder.operations.values()) <= 4 + 2 * 5
    assert cli("ls", tmp_path, "--limit", 0).code == 2
