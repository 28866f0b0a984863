"""The command `inspect`: what a snapshot holds, for people and for programs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from snapshots import SnapshotStore
from tests.snapshot_kit import parts
from tests.snapshots.cli_kit import Cli, G


def test_inspect_shows_what_the_snapshot_holds(cli: Cli, uri: str) -> None:
    answer = cli("inspect", uri, "--json")

    assert (answer.code, answer.err) == (0, "")
    report = answer.json
    assert {name: report[name] for name in ("version", "parent_version", "operator_id", "hash")} == {
        "version": 1,
        "parent_version": None,
        "operator_id": "enrich",
        "hash": "xxhash64",
    }
    assert (report["parallelism"], report["max_parallelism"]) == (2, G)
    subtasks = [(row["first"], row["last"], row["rows"], row["in_flight"], row["exact"]) for row in report["subtasks"]]
    assert subtasks == [(0, 63, 96, 2, True), (64, 127, 96, 1, True)]
    assert sum(row["bytes"] for row in report["subtasks"]) == sum(row["bytes"] for row in report["states"])
    states = [(row["name"], row["kind"], row["type"], row["rows"]) for row in report["states"]]
    assert states == [("delay", "value", "double", 128), ("notes", "value", None, 64)]
    assert report["in_flight"] == {"elements": 4, "pending": 2, "completed": 1, "watermarks": 1}
    assert report["watermarks"] == [500, None]
    assert report["source_position"] == {"batch_id": 7}


def test_inspect_shows_the_same_to_people(cli: Cli, uri: str) -> None:
    answer = cli("inspect", uri)

    assert answer.code == 0
    for expected in ("snapshot 1 of enrich", "2 of at most 128", "delay", "notes", "batch_id", "pending", "64", "127"):
        assert expected in answer.out


def test_inspect_counts_the_rows_of_a_range_that_shares_files_with_others(cli: Cli, uri: str) -> None:
    cli("repartition", uri, "--parallelism", "3")

    report = cli("inspect", uri, "--json").json

    assert report["parent_version"] == 1
    # Subtask 1 of 3 has key groups of both old subtasks, so of files that others read as well.
    ranges = [(row["first"], row["last"]) for row in report["subtasks"]]
    assert [row["rows"] for row in report["subtasks"]] == [
        sum(1 + group % 2 for group in range(first, last + 1)) for first, last in ranges
    ]
    assert [row["exact"] for row in report["subtasks"]] == [True, True, True]
    assert [row["in_flight"] for row in report["subtasks"]] == [1, 1, 1]
    assert sum(row["bytes"] for row in report["subtasks"]) == sum(row["bytes"] for row in report["states"])


def test_inspect_takes_an_older_version(cli: Cli, uri: str) -> None:
    cli("repartition", uri, "--parallelism", "3")

    answer = cli("inspect", uri, "--version", "1", "--json")

    assert (answer.json["version"], answer.json["parallelism"]) == (1, 2)


def test_a_source_position_is_shown_as_json(cli: Cli, tmp_path: Path) -> None:
    made = SnapshotStore(tmp_path, "enrich")
    made.write(parts({}), source_position={"job": {"parallelism": 1}, "offset": 7, "file": "a.csv"})

    out = cli("inspect", made.uri).out

    for expected in ('{"parallelism": 1}', "a.csv"):
        assert expected in out


NOVEMBER = 1_700_000_000_000


@pytest.mark.parametrize(
    ("watermarks", "shown"),
    [
        ({}, [("watermark", "-")]),
        (dict.fromkeys(range(16), NOVEMBER), [("watermark", "2023-11-14 22:13:20 UTC")]),
        (
            {3: NOVEMBER, 7: NOVEMBER + 3_600_000, 9: NOVEMBER + 1},
            [
                ("lowest watermark", "2023-11-14 22:13:20 UTC"),
                ("highest watermark", "2023-11-14 23:13:20 UTC"),
                ("channels without watermark", "13"),
            ],
        ),
        ({0: 2**63 - 1, 1: -(2**62)}, [("lowest watermark", str(-(2**62))), ("highest watermark", "the end")]),
    ],
)
def test_people_see_between_which_times_the_watermarks_are(
    cli: Cli, tmp_path: Path, watermarks: dict[int, int], shown: list[tuple[str, str]]
) -> None:
    written = parts({"count": {"a": 1}}, parallelism=16, watermarks=watermarks)
    uri = SnapshotStore(tmp_path, "enrich").write(written).folder.uri

    facts = re.findall(r"^│ (\w[\w ]*?) +│ (.*?) +│$", cli("inspect", uri, "--history", "0").out, re.MULTILINE)

    found = [(name, value) for name, value in facts if "watermark" in name]
    assert [one for one in found if one in shown] == shown
    assert len([name for name, _ in found]) <= 3
    assert cli("inspect", uri, "--json").json["watermarks"] == [watermarks.get(at) for at in range(16)]
