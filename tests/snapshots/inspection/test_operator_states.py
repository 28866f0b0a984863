"""What can be seen of states without a key: tables, exports, counts and differences."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from keygroups import ConfigError, KeyGroupRange
from keygroups.codec import unpack
from snapshots import Snapshot, SnapshotStore
from snapshots.inspection import compare, export, operator_state_sizes
from snapshots.report import render
from tests.snapshots.cli_kit import Cli, runner
from tests.snapshots.operator_states import OFFSETS, RULES, SEEN, written

ROWS = {
    "offsets": [(0, 0, ("partition 0", 0)), (1, 0, ("partition 1", 0)), (1, 1, ("partition 1", 1))],
    "seen": [(0, 0, 0), (1, 0, 1)],
    "rules": [(0, 0, ("a", 1)), (0, 1, ("b", {"n": 2}))],
}


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Cli:
    return runner(capsys)


@pytest.fixture
def store(tmp_path: Path) -> SnapshotStore:
    return written(store=SnapshotStore(tmp_path, "enrich"))[0]


def rows_of(snapshot: Snapshot, name: str) -> list[tuple[int, int, object]]:
    table = snapshot.to_arrow(name)
    subtasks, positions, items = (table.column(one).to_pylist() for one in ("subtask", "position", "item"))
    return list(zip(subtasks, positions, map(unpack, items), strict=True))


@pytest.mark.parametrize("name", ROWS)
def test_as_a_table(store: SnapshotStore, name: str) -> None:
    snapshot = store.load()
    assert rows_of(snapshot, name) == ROWS[name]
    assert list(snapshot.to_pandas(name)["item"]) == [item for _, _, item in ROWS[name]]


def test_a_table_of_none_is_empty(store: SnapshotStore) -> None:
    snapshot = store.edit().put_items(OFFSETS, []).commit()
    assert (snapshot.to_arrow("offsets").num_rows, rows_of(snapshot, "offsets")) == (0, [])
    with pytest.raises(ConfigError, match=r"\['count', 'profile', .*'offsets'.*\]"):
        snapshot.to_arrow("unknown")


def test_as_a_file(store: SnapshotStore, tmp_path: Path) -> None:
    snapshot = store.load()
    assert export(snapshot, "offsets", tmp_path / "offsets.jsonl") == 3
    lines = [json.loads(line) for line in (tmp_path / "offsets.jsonl").read_text().splitlines()]
    assert lines[0] == {"subtask": 0, "position": 0, "item": ["partition 0", 0]}
    assert export(snapshot, "rules", tmp_path / "rules.parquet") == 2
    assert pq.read_table(tmp_path / "rules.parquet").column_names == ["subtask", "position", "item"]
    with pytest.raises(ConfigError, match="has no keys"):
        export(snapshot, "offsets", tmp_path / "x.csv", key_groups=KeyGroupRange(0, 1))


def test_in_numbers(store: SnapshotStore) -> None:
    sizes = operator_state_sizes(store.load().manifest)
    assert [(one.name, one.mode, one.items) for one in sizes] == [
        ("offsets", "split", 3),
        ("seen", "union", 2),
        ("rules", "broadcast", 2),
    ]
    assert all(one.bytes > 0 for one in sizes)


def test_between_two_versions(store: SnapshotStore) -> None:
    changed = store.edit().put_items(OFFSETS, [("partition 1", 1), ("partition 2", 0)]).put_items(RULES, {"a": 1})
    old, new = store.load(), changed.drop("seen").commit()
    found = {one.name: one for one in compare(old, new).operator_states}

    assert (found["offsets"].added, found["offsets"].removed) == (1, 2)
    assert (found["rules"].added, found["rules"].removed) == (0, 1)
    assert (found["seen"].in_new, found["seen"].removed) == (False, 2)
    # Only which subtask holds an item is different.
    moved = store.edit().put_items(OFFSETS, [("partition 2", 0), ("partition 1", 1)]).commit()
    assert [one.added + one.removed for one in compare(new, moved).operator_states] == [0, 0]


def test_by_commands(store: SnapshotStore, cli: Cli, tmp_path: Path) -> None:
    uri = store.uri
    shown = cli("inspect", uri, "--json").json["operator_states"]
    assert [(one["name"], one["mode"], one["items"]) for one in shown] == [
        ("offsets", "split", 3),
        ("seen", "union", 2),
        ("rules", "broadcast", 2),
    ]
    assert "broadcast" in cli("inspect", uri).out
    assert cli("export", uri, "--state", "seen", "--to", tmp_path / "seen.csv").code == 0
    assert (tmp_path / "seen.csv").read_text().splitlines() == ["subtask,position,item", "0,0,0", "1,0,1"]
    edited = cli("edit", uri, "--drop", "seen", "--rename", "offsets=positions", "--json").json
    assert edited["states"] == ["count", "profile", "positions", "rules"]
    differences = cli("diff", uri, 1, 2, "--json").json["operator_states"]
    assert {one["name"]: (one["added"], one["removed"]) for one in differences} == {
        "offsets": (0, 3),
        "seen": (0, 2),
        "rules": (0, 0),
        "positions": (3, 0),
    }
    assert "operator states" in cli("diff", uri, 1, 2).out
    assert cli("verify", uri).code == 0


def test_on_the_page(store: SnapshotStore) -> None:
    page = render(store, store.load())
    assert "offsets (split, 3 items," in page


def test_without_any_nothing_is_shown(tmp_path: Path, cli: Cli) -> None:
    store, _ = written(store=SnapshotStore(tmp_path, "enrich"))
    store.edit().drop(OFFSETS.name).drop(SEEN.name).drop(RULES.name).commit()
    assert "operator states" not in cli("inspect", store.uri).out
