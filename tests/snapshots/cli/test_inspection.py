"""What commands show of keys and key groups: their sizes, what differs between versions, and exports."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from keygroups import key_group_of
from keygroups.state import MISSING
from snapshots import Snapshot, SnapshotStore, SubtaskSnapshot
from tests.snapshot_kit import G, part, parts, record, restored, words
from tests.snapshots.cli_kit import Cli


@pytest.fixture
def uri(tmp_path: Path) -> str:
    """Two versions: 200 counts, then three of them changed, one removed and one added, as deltas."""
    store = SnapshotStore(tmp_path / "store", "enrich")
    profiles: dict[object, object] = {word: {"name": word, "n": n} for n, word in enumerate(words(20))}
    content = {"count": dict(zip(words(200), range(200), strict=True)), "profile": profiles}
    first = store.write(parts(content, in_flight=[record("a", 0), record("b", 1)]))
    changed = {**dict.fromkeys(words(3), -1), "new": 1}
    store.write(changed_parts(first, changed, "key 7"))
    return store.uri


def changed_parts(snapshot: Snapshot, changed: dict[str, int], removed: str) -> list[SubtaskSnapshot]:
    backends = [restored(snapshot, index) for index in range(2)]
    for key, value in {**changed, removed: MISSING}.items():
        key_group = key_group_of(key, G)
        backends[key_group * 2 // G].tables["count"].put(key_group, key, value)
    return [part(backend, index, 2) for index, backend in enumerate(backends)]


def test_inspect_shows_sizes_by_key_group_and_the_history(cli: Cli, uri: str) -> None:
    report = cli("inspect", uri, "--largest", 2, "--json").json

    assert len(report["key_groups"]["rows"]) == G
    assert sum(report["key_groups"]["rows"]) == 220
    assert sum(report["key_groups"]["delta_rows"]) == 5
    assert sum(report["key_groups"]["bytes"]) == sum(state["bytes"] for state in report["states"])
    assert [(one["version"], one["deltas"]) for one in report["history"]] == [(2, 2), (1, 0)]
    assert [key["bytes"] for key in report["largest_keys"]["count"]] == [15, 15]
    assert [row["exact"] for row in report["subtasks"]] == [False, False]


def test_inspect_draws_a_bar_for_each_key_group(cli: Cli, uri: str) -> None:
    answer = cli("inspect", uri, "--largest", 1)

    assert "bytes by key group: the largest has" in answer.out
    assert answer.out.count("█") > 20
    assert "largest keys of profile" in answer.out
    assert "history" in answer.out
    assert "~" in answer.out
    assert "keygroups compact" in answer.err


def test_inspect_shows_elements_by_age(cli: Cli, uri: str) -> None:
    answer = cli("inspect", uri, "--version", 1)

    assert "over 1 day" in answer.out
    assert cli("inspect", uri, "--version", 1, "--json").json["in_flight_by_attempt"] == {"1": 2}


def test_plan_draws_the_owners(cli: Cli, uri: str) -> None:
    answer = cli("plan", uri, "--parallelism", 3)

    assert "0000000011111111" in answer.out
    assert "0000001111122222" in answer.out
    assert "......^^...^^^^^" in answer.out


def test_diff_counts_and_names_what_differs(cli: Cli, uri: str) -> None:
    report = cli("diff", uri, 1, 2, "--json").json
    named = cli("diff", uri, 1, 2, "--rows", "--json").json

    count, profile = report["states"]
    assert (count["added"], count["removed"], count["changed"]) == (1, 1, 3)
    assert {change["key_group"] for change in count["key_groups"]} == {
        key_group_of(key, G) for key in [*words(3), "key 7", "new"]
    }
    assert (profile["key_groups"], profile["key_groups_compared"]) == ([], 0)
    assert "rows" not in report
    assert {(row["key"], row["change"]) for row in named["rows"]} == {
        *((word, "changed") for word in words(3)),
        ("new", "added"),
        ("key 7", "removed"),
    }
    assert report["in_flight"]["gone"] == 2
    assert len(cli("diff", uri, 1, 2, "--rows", "--limit", 2, "--json").json["rows"]) == 2


def test_diff_shows_the_same_to_people(cli: Cli, uri: str) -> None:
    answer = cli("diff", uri, 1, 2, "--rows")

    assert "from snapshot 1 to 2 of enrich" in answer.out
    assert '"key 7"' in answer.out
    assert "removed" in answer.out


def test_a_version_that_is_not_there_is_not_found(cli: Cli, uri: str) -> None:
    assert cli("diff", uri, 1, 9).code == 3
    assert cli("export", uri, "--state", "count", "--to", "x.csv", "--version", 9).code == 3


def test_export_writes_a_file_and_says_how_many_rows(cli: Cli, uri: str, tmp_path: Path) -> None:
    target = tmp_path / "count.parquet"

    answer = cli("export", uri, "--state", "count", "--to", target, "--version", 1, "--json")

    assert answer.json == {"version": 1, "state": "count", "path": str(target), "rows": 200}
    assert pq.read_table(target).num_rows == 200
    assert "rows" in cli("export", uri, "--state", "count", "--to", target).out


def test_export_takes_some_key_groups_and_in_flight_elements(cli: Cli, uri: str, tmp_path: Path) -> None:
    target = tmp_path / "some.jsonl"
    assert cli("export", uri, "--state", "count", "--to", target, "--key-groups", "3-4").code == 0
    assert {json.loads(line)["key_group"] for line in target.read_text().splitlines()} == {3, 4}

    assert cli("export", uri, "--in-flight", "--to", target, "--version", 1, "--json").json["rows"] == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--to", "x.csv"], "--in-flight"),
        (["--to", "x.csv", "--state", "count", "--in-flight"], "--in-flight"),
        (["--to", "x.csv", "--state", "count", "--step", "enrich"], "--in-flight"),
        (["--to", "x.xml", "--state", "count"], ".parquet"),
        (["--to", "x.csv", "--state", "absent"], "absent"),
        (["--to", "x.csv", "--state", "count", "--key-groups", "0-16"], "0-15"),
        (["--to", "x.csv", "--state", "count", "--key-groups", "5-4"], "0-15"),
        (["--to", "x.csv", "--state", "count", "--key-groups", "some"], "0-15"),
    ],
)
def test_what_cannot_be_exported_is_a_usage_error(cli: Cli, uri: str, arguments: list[str], message: str) -> None:
    answer = cli("export", uri, *arguments)

    assert (answer.code, answer.out) == (2, "")
    assert message in answer.err
