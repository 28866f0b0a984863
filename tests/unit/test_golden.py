"""Snapshots of every format version that was ever released, as they were written then."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import pyarrow.parquet as pq
import pytest

from keygroups.state import MISSING, identity_of
from snapshots import SnapshotStore
from tests.golden import generate

VERSIONS = sorted(path.name for path in generate.FOLDER.glob("v*"))


@pytest.fixture(params=VERSIONS)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> SnapshotStore:
    shutil.copytree(generate.FOLDER / request.param, tmp_path / "golden")
    return SnapshotStore(tmp_path / "golden", generate.OPERATOR_ID)


def expected(version: int) -> dict[str, dict[Any, Any]]:
    content = {
        state: {identity_of(key): value for key, value in values.items()} for state, values in generate.FIRST.items()
    }
    for state, changes in generate.CHANGES.items() if version == 2 else ():
        for key, value in changes.items():
            content[state][identity_of(key)] = value
    return {state: {k: v for k, v in values.items() if v is not MISSING} for state, values in content.items()}


def test_there_is_one_of_the_first_version() -> None:
    assert VERSIONS[0] == "v1"


@pytest.mark.parametrize("version", [1, 2])
def test_it_is_sound_and_reads_as_it_was_written(store: SnapshotStore, version: int) -> None:
    snapshot = store.load(version)
    found: dict[str, dict[Any, object]] = {state.name: {} for state in generate.STATES}
    for subtask in range(2):
        for state, groups in snapshot.restore(subtask, 2).states(generate.STATES).items():
            for group in groups.values():
                found[state] |= group.load()

    assert store.verify(version).ok
    assert found == expected(version)
    assert snapshot.source_position == {"offset": 42}
    queue = snapshot.restore(0, 1).queue()
    assert (queue.elements, queue.watermark) == (generate.ELEMENTS, 3)
    assert snapshot.restore(0, 1).operator_state("offsets") == list(generate.OPERATOR_STATE.items)


def test_it_can_be_continued(store: SnapshotStore) -> None:
    assert store.repartition(2).version == 3
    assert store.compact().version == 4
    assert store.load(4).to_arrow("count").num_rows == len(expected(2)["count"])


def test_files_of_a_compacted_snapshot_are_read_by_anything_that_reads_parquet(
    store: SnapshotStore, tmp_path: Path
) -> None:
    snapshot = store.compact()
    (file,) = snapshot.manifest.files_of("keyed", state="count")
    path = str(tmp_path / "golden" / generate.OPERATOR_ID / file.path)
    frame = pd.read_parquet(path)
    rows = duckdb.sql(f"SELECT key, value FROM read_parquet('{path}')").fetchall()

    for found in (
        dict(zip(frame["key"], frame["value"], strict=True)),
        dict(rows),
        {row["key"]: row["value"] for row in pq.read_table(path).to_pylist()},
    ):
        assert found == expected(2)["count"]
    (file,) = snapshot.manifest.files_of("keyed", state="place")
    path = str(tmp_path / "golden" / generate.OPERATOR_ID / file.path)
    assert duckdb.sql(f"SELECT value.tags[1] FROM read_parquet('{path}') WHERE key = 'a'").fetchall() == [("x",)]


def test_a_snapshot_with_deltas_is_read_as_one_table(store: SnapshotStore) -> None:
    table = store.load(2).to_arrow("count")
    assert table.schema.names == ["key_group", "key", "value"]
    rows = duckdb.from_arrow(table).project("key, value").fetchall()

    assert dict(rows) == expected(2)["count"]
    assert dict(zip(table.to_pandas()["key"], table.to_pandas()["value"], strict=True)) == expected(2)["count"]


def test_lists_and_maps_read_as_they_were_written(tmp_path: Path) -> None:
    shutil.copytree(generate.FOLDER / "entries-v1", tmp_path / "golden")
    snapshot = SnapshotStore(tmp_path / "golden", generate.OPERATOR_ID).load(2)
    found: dict[str, dict[Any, Any]] = {}
    for state, groups in snapshot.restore(0, 1).states(generate.ENTRY_STATES).items():
        found[state] = {}
        for group in groups.values():
            found[state] |= group.load()

    assert {file.kind for file in snapshot.manifest.files_of("keyed", "delta")} == {"keyed", "delta"}
    assert {key: list(clicks) for key, clicks in found["clicks"].items()} == {"a": [*range(21)], "b": [1, 2]}
    assert dict(found["prices"]["b"]) == generate.MANY
    assert dict(found["prices"]["a"]) == {key: price for key, price in generate.MANY.items() if key != "x"}
    assert found["anything"].keys() == {"a"}
    anything = found["anything"]["a"]
    assert [anything[identity_of(key)] for key in (1, 1.0, ("t", 2))] == [1, "float", [1]]
    assert found["highest"] == {"a": 7, "b": 7}
