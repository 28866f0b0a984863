"""The command `gc`: what it shows, what it removes, and what it refuses."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from snapshots import SnapshotStore
from snapshots.filesystem import LocalFolder
from tests.quick import first_are_quick
from tests.snapshot_kit import parts
from tests.snapshots.cli_kit import Answer, Cli


@pytest.fixture
def uri(tmp_path: Path) -> str:
    """An operator with 13 versions, two days old."""
    store = SnapshotStore(tmp_path, "enrich")
    for number in range(13):
        store.write(parts({"count": {"a": number}}))
    for path in tmp_path.rglob("*"):
        if path.is_file():
            os.utime(path, (path.stat().st_mtime - 2 * 86400,) * 2)
    return f"{tmp_path}/enrich"


def test_gc_shows_what_would_go_and_removes_nothing(cli: Cli, uri: str) -> None:
    answer = cli("gc", uri, "--json")

    assert (answer.code, answer.err) == (0, "")
    report = answer.json
    assert report.pop("bytes") > 0
    assert len(report.pop("files")) == 12
    assert report == {
        "dry_run": True,
        "newest": 13,
        "retained": list(range(4, 14)),
        "pinned": [],
        "expired": [1, 2, 3],
        "young": 0,
        "undeleted": [],
    }
    assert len(SnapshotStore.at(uri).versions()) == 13


def test_gc_tells_people_how_to_apply_it(cli: Cli, uri: str) -> None:
    answer = cli("gc", uri)

    assert answer.code == 0
    for expected in ("would be removed", "versions that go", "keyed-count-0-7.parquet"):
        assert expected in answer.out
    assert "--apply" in answer.err


def test_gc_says_why_files_stay_that_no_version_needs(cli: Cli, uri: str) -> None:
    answer = cli("gc", uri, "--keep-last", "1", "--min-age", "7d", "--apply")

    assert answer.code == 0
    assert "48 files that no version needs stay: they are younger than --min-age (7d), and may belong" in answer.err
    assert cli("gc", uri, "--keep-last", "1", "--min-age", "0s", "--apply").err == ""


def test_gc_applies(cli: Cli, uri: str) -> None:
    answer = cli("gc", uri, "--apply", "--keep-last", "2", "--json")

    assert (answer.code, answer.json["dry_run"], answer.json["retained"]) == (0, False, [12, 13])
    assert SnapshotStore.at(uri).versions() == [12, 13]
    assert SnapshotStore.at(uri).verify().ok
    assert "garbage removed" in cli("gc", uri, "--apply", "--keep-last", "1").out


@pytest.mark.parametrize("options", [[], ["--apply"]])
def test_gc_says_when_there_is_nothing_to_remove(cli: Cli, uri: str, options: list[str]) -> None:
    answer = cli("gc", uri, "--keep-last", "13", *options)

    assert (answer.code, answer.err) == (0, "")
    assert answer.out.startswith("no garbage to remove\n")


@pytest.mark.parametrize("command", ["pin", "unpin"])
def test_a_version_or_folder_that_is_not_there_is_exit_code_3(cli: Cli, uri: str, tmp_path: Path, command: str) -> None:
    for arguments in ([uri, "99"], [tmp_path / "absent", "1"]):
        answer = cli(command, *arguments)
        assert (answer.code, answer.out) == (3, "")
        assert "no snapshot of version" in answer.err


@pytest.mark.parametrize(
    ("age", "files"),
    first_are_quick(2, [("47h", 12), ("2.5d", 0), ("7d", 0), ("172799s", 12), ("2880m", 12), ("172900s", 0)]),
)
def test_gc_takes_an_age_in_any_unit(cli: Cli, uri: str, age: str, files: int) -> None:
    report = cli("gc", uri, "--min-age", age, "--json").json

    assert (len(report["files"]), report["young"]) == (files, 12 - files)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--min-age", "soon"],
        ["--min-age", "-1h"],
        ["--min-age", "1w"],
        ["--min-age", "\u0663h"],
        ["--keep-last", "0"],
        ["--min-age", ""],
    ],
)
def test_gc_refuses_what_makes_no_sense(cli: Cli, uri: str, arguments: list[str]) -> None:
    answer = cli("gc", uri, "--apply", *arguments)

    assert (answer.code, answer.out) == (2, "")
    assert len(SnapshotStore.at(uri).versions()) == 13


@pytest.mark.parametrize("age", ["3", "0", "2.5"])
def test_gc_refuses_an_age_without_a_unit_and_says_which_there_are(cli: Cli, uri: str, age: str) -> None:
    answer = cli("gc", uri, "--apply", "--min-age", age)

    assert (answer.code, answer.out) == (2, "")
    assert "has no unit" in answer.err
    for unit in "smhd":
        assert f"{age}{unit}" in answer.err
    assert len(SnapshotStore.at(uri).versions()) == 13


def test_gc_of_nothing_is_exit_code_3(cli: Cli, tmp_path: Path) -> None:
    answer = cli("gc", str(tmp_path / "nothing"), "--apply")

    assert (answer.code, answer.out) == (3, "")
    assert answer.err.startswith("error: no snapshot in ")


def test_gc_says_when_the_storage_did_not_delete(cli: Cli, uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LocalFolder, "delete", lambda folder, names: None)

    answer = cli("gc", uri, "--apply", "--json")
    assert answer.code == 1
    assert len(answer.json["undeleted"]) == 12 + 3


def test_a_pinned_version_stays(cli: Cli, uri: str) -> None:
    kept = "version 2 of enrich is pinned: garbage collection keeps it\n"
    assert cli("pin", uri, "2") == Answer(0, "", kept)
    assert cli("gc", uri, "--apply", "--json").json["pinned"] == [2]
    assert SnapshotStore.at(uri).versions() == [2, *range(4, 14)]

    released = "version 2 of enrich is no longer pinned: garbage collection may remove it\n"
    assert cli("unpin", uri, "2") == Answer(0, "", released)
    assert cli("unpin", uri, "2") == Answer(0, "", "version 2 of enrich was not pinned\n")
    assert cli("gc", uri, "--apply", "--json").json["expired"] == [2]
    assert cli("pin", uri, "2").code == 3
    assert cli("pin", uri, "two").code == 2


def test_inspect_says_why_a_version_was_committed(cli: Cli, uri: str) -> None:
    SnapshotStore.at(uri).claim()

    assert cli("inspect", uri, "--json").json["operation"] == "claim"
    assert cli("inspect", uri, "--version", "13", "--json").json["operation"] == "write"
