"""The commands that commit another layout, `repartition` and `compact`, and `plan`, which tells its price."""

from __future__ import annotations

import json

import pytest

from snapshots.store import SnapshotStore
from tests.snapshots.cli_kit import Cli, G


def test_plan_prices_the_moves_and_changes_nothing(cli: Cli, uri: str) -> None:
    answer = cli("plan", uri, "--parallelism", "3", "--json")

    assert answer.code == 0
    moves = [
        (move["source_subtask"], move["target_subtask"], move["first"], move["last"]) for move in answer.json["moves"]
    ]
    assert moves == [(0, 0, 0, 42), (0, 1, 43, 63), (1, 1, 64, 85), (1, 2, 86, 127)]
    assert answer.json["staying"]["key_groups"] == 43 + 22
    assert answer.json["moving"]["key_groups"] == 21 + 42
    approximate = answer.json["staying"]["approximate_bytes"] + answer.json["moving"]["approximate_bytes"]
    assert approximate == pytest.approx(cli("inspect", uri, "--json").json["bytes"], abs=4)
    assert SnapshotStore.at(uri).versions() == [1]


def test_plan_says_how_to_commit_it(cli: Cli, uri: str) -> None:
    answer = cli("plan", uri, "--parallelism", "3")

    assert "from parallelism 2 to 3" in answer.out
    assert f"keygroups repartition {uri} --parallelism 3" in answer.err


def test_repartition_commits_a_version_and_says_how_long_it_took(cli: Cli, uri: str) -> None:
    answer = cli("repartition", uri, "--parallelism", "3", "--json")

    assert answer.code == 0
    report = answer.json
    assert 0 < report.pop("milliseconds") < 60_000
    assert report == {
        "old_version": 1,
        "new_version": 2,
        "old_parallelism": 2,
        "new_parallelism": 3,
        "old_max_parallelism": G,
        "max_parallelism": G,
        "old_hash": "xxhash64",
        "hash": "xxhash64",
        "operation": "repartition",
        "bytes_read": 0,
        "bytes_written": 0,
    }
    newest = SnapshotStore.at(uri).latest()
    assert newest is not None
    assert (newest.version, newest.parallelism) == (2, 3)


def test_compact_says_what_it_folded_or_that_there_was_nothing_to_fold(cli: Cli, uri: str) -> None:
    answer = cli("compact", uri, "--json")
    report = json.loads(answer.out)
    assert (report["old_version"], report["new_version"]) == (1, 1)
    assert report["old_files"] == report["new_files"]

    assert "nothing to fold" in cli("compact", uri).out


def test_a_rewrite_says_what_it_does_before_and_after(cli: Cli, uri: str) -> None:
    arguments = ("repartition", uri, "--parallelism", "3", "--max-parallelism", "1000", "--hash", "flink", "--rewrite")
    people = cli(*arguments)

    assert people.code == 0
    assert "3, 1000 key groups by flink (from 128 by xxhash64): a rewrite, which reads" in people.err
    assert "rewritten in" in people.out
    report = cli("repartition", uri, "--parallelism", "2", "--max-parallelism", "64", "--rewrite", "--json").json
    assert (report["operation"], report["old_max_parallelism"], report["max_parallelism"]) == ("rewrite", 1000, 64)
    assert (report["old_hash"], report["hash"]) == ("flink", "flink")
    assert min(report["bytes_read"], report["bytes_written"]) > 1000
    assert cli("verify", uri).code == 0


@pytest.mark.parametrize("change", [("--max-parallelism", "1000"), ("--hash", "flink")])
def test_what_takes_a_rewrite_is_a_usage_error_that_says_so(cli: Cli, uri: str, change: tuple[str, str]) -> None:
    answer = cli("repartition", uri, "--parallelism", "3", *change)

    assert (answer.code, answer.out) == (2, "")
    assert "--rewrite" in answer.err
    assert "0 bytes" not in answer.err
    assert SnapshotStore.at(uri).versions() == [1]


def test_repartition_says_that_it_moves_nothing(cli: Cli, uri: str) -> None:
    assert "metadata only, 0 bytes" in cli("repartition", uri, "--parallelism", "4").err


def test_repartition_shows_the_same_to_people(cli: Cli, uri: str) -> None:
    answer = cli("repartition", uri, "--parallelism", "4")

    assert answer.code == 0
    assert "repartitioned in" in answer.out
    assert "ms" in answer.out
