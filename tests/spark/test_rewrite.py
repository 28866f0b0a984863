"""The rewrite as a Spark job gives what the local one gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PythonException
from pyspark.sql import SparkSession

from snapshots import Snapshot, SnapshotStore
from snapshots.format.manifest import DataFile
from tests.snapshot_kit import content_of, parts
from tests.snapshots.upkeep.varied_operator import check_layout, content, elements, operator, watermark

pytestmark = pytest.mark.spark


@pytest.fixture
def store(tmp_path: Path) -> SnapshotStore:
    """Return a store with two snapshots: base files and deltas, operator state, elements in flight."""
    store = SnapshotStore(tmp_path, "enrich")
    made = operator(5)
    store.write(made.cut())
    made.change(20)
    store.write(made.cut(), source_position={"batch": 7})
    assert store.load(2).manifest.files_of("delta")
    return store


def rows(snapshot: Snapshot, name: str) -> list[tuple[Any, ...]]:
    return sorted(zip(*(column.to_pylist() for column in snapshot.to_arrow(name).columns), strict=True), key=repr)


def test_both_engines_write_the_same_rows(spark: SparkSession, store: SnapshotStore, tmp_path: Path) -> None:
    before = store.load(2)
    after = store.repartition(4, max_parallelism=1000, hash="flink", rewrite=True, engine="spark", spark=spark)
    local = SnapshotStore(tmp_path / "other", "enrich")
    made = operator(5)
    local.write(made.cut())
    made.change(20)
    local.write(made.cut())
    expected = local.repartition(4, max_parallelism=1000, hash="flink", rewrite=True)

    check_layout(store, after)
    assert content(after) == content(before)
    assert elements(after) == elements(before)
    assert watermark(after) == watermark(before)
    assert [rows(after, name) for name in after.state_names] == [rows(expected, name) for name in after.state_names]
    order = [("channel", "ascending"), ("sequence", "ascending")]
    assert after.in_flight().sort_by(order) == expected.in_flight().sort_by(order)
    assert after.source_position == {"batch": 7}
    # One range of key groups a task, and no row of another.
    assert {file.subtask for file in after.manifest.files_of("keyed")} == set(range(4))


def test_states_that_are_empty_are_rewritten_too(spark: SparkSession, tmp_path: Path) -> None:
    store = SnapshotStore(tmp_path, "enrich")
    store.write(parts({}))
    after = store.repartition(3, max_parallelism=64, rewrite=True, engine="spark", spark=spark)

    assert (after.parallelism, after.max_parallelism, after.state_names) == (3, 64, ("count", "profile"))
    assert content_of(after) == {"count": {}, "profile": {}}
    assert store.verify().ok


def test_a_damaged_file_commits_nothing(spark: SparkSession, store: SnapshotStore) -> None:
    snapshot = store.load(2)
    file: DataFile = max(snapshot.manifest.files_of("keyed"), key=lambda file: file.bytes)
    path = Path(snapshot.folder.path(file.path))
    data = bytearray(path.read_bytes())
    data[4 : -file.footer_bytes] = bytes(len(data) - 4 - file.footer_bytes)
    path.write_bytes(bytes(data))

    with pytest.raises(PythonException, match=file.path):
        store.repartition(4, max_parallelism=1000, rewrite=True, engine="spark", spark=spark)
    assert store.versions() == [1, 2]
