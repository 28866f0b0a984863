"""Snapshots as a Spark data source: what is read, what is not read, and what is written."""

from __future__ import annotations

import datetime as dt
import json
import pickle
import random
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.datasource import EqualTo, Filter, GreaterThan, GreaterThanOrEqual, In, LessThan, LessThanOrEqual, Not
from pyspark.sql.types import LongType, StringType, StructType

from keygroups import ConfigError, ListState, MapState, ValueState, key_group_of, range_of
from keygroups.state import MemoryBackend, SharedList
from snapshots import CommitConflict, SnapshotStore
from snapshots.filesystem import open_folder
from snapshots.spark import register
from snapshots.spark.options import SourceOptions
from snapshots.spark.reading import SnapshotReader, WantedKeyGroups, spark_schema, stored_schema
from snapshots.spark.writing import StateWriter
from snapshots.testing.wrappers import CountingFolder
from tests.examples import scaled
from tests.hosting.kit import wait_until
from tests.quick import first_is_quick
from tests.s3_server import s3_server
from tests.snapshot_kit import COUNT, PROFILE, G, content_of, part, parts, record, restored, words
from tests.snapshots.operator_states import OFFSETS, written

KEYS = 500


@pytest.fixture(scope="module")
def source(spark: SparkSession) -> Iterator[SparkSession]:
    register(spark)
    yield spark
    spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def rows(frame: DataFrame) -> list[tuple[Any, ...]]:
    return sorted((tuple(row.asDict(recursive=True).values()) for row in frame.collect()), key=str)


def table_rows(table: pa.Table) -> list[tuple[Any, ...]]:
    return sorted((tuple(row.values()) for row in table.to_pylist()), key=str)


def layered(store: SnapshotStore) -> SnapshotStore:
    """Commit a base and two deltas on it, the last of another parallelism, with elements in flight."""
    content = {"count": dict.fromkeys(words(KEYS), 1), "profile": {word: {"name": word} for word in words(KEYS)}}
    store.write(parts(content, in_flight=[record("key 1", 0), record("key 2", 1)]))
    for version, parallelism in ((2, 2), (3, 3)):
        snapshot = store.latest()
        assert snapshot is not None
        made = []
        for subtask in range(parallelism):
            backend = restored(snapshot, subtask, parallelism)
            owned = range_of(subtask, parallelism, G)
            for number in range(version, KEYS, 37):
                key = f"key {number}"
                if key_group_of(key, G) in owned:
                    backend.tables["count"].put(key_group_of(key, G), key, version)
            made.append(part(backend, subtask, parallelism, [record("key 5", 0, subtask)] if subtask == 0 else ()))
        store.write(made)
    return store


def read(spark: SparkSession, store: SnapshotStore, **options: Any) -> DataFrame:
    return spark.read.format("keygroups").options(**options).load(store.uri)


def test_a_state_is_read_as_it_is_at_every_version(source: SparkSession, tmp_path: Path) -> None:
    store = layered(SnapshotStore(tmp_path, "enrich"))
    assert any(file.kind == "delta" for file in store.load(3).manifest.files)
    for version in (1, 2, 3):
        wanted = table_rows(store.load(version).to_arrow("count"))
        assert rows(read(source, store, what="count", version=version)) == wanted
    newest = read(source, store, what="count")
    assert newest.schema.simpleString() == "struct<key_group:int,key:string,value:bigint>"
    changed = newest.where("key in ('key 3', 'key 40', 'nobody') and value = 3")
    assert rows(changed.select("key", "value")) == [("key 3", 3), ("key 40", 3)]
    assert read(source, store, what="count").where("key_group >= 12 and key_group < 13").select(
        "key_group"
    ).distinct().collect() == [(12,)]
    assert read(source, store, what="profile").schema["value"].dataType.simpleString() == "binary"


def test_a_frame_keeps_the_version_that_was_the_newest(source: SparkSession, tmp_path: Path) -> None:
    store = SnapshotStore(tmp_path, "enrich")
    store.write(parts({"count": {"a": 1}}, [COUNT]))
    frame = read(source, store)
    store.write(parts({"count": {"a": 2}}, [COUNT]))
    assert rows(frame.select("value")) == [(1,)]
    assert rows(read(source, store).select("value")) == [(2,)]


def test_a_job_is_read_by_step_and_state(source: SparkSession, tmp_path: Path) -> None:
    store = SnapshotStore(tmp_path, "job")
    values: dict[str, Any] = {"enrich": {"key": "a"}, "score": 1.5}  # of all steps they have no type, of one they have
    steps = {
        step: parts({"count": {step: 1}}, in_flight=[record(step, 0, value=value)]) for step, value in values.items()
    }
    snapshot = store.write(steps)
    assert rows(read(source, store, what="enrich.count").select("key", "value")) == [("enrich", 1)]
    elements = read(source, store, what="in_flight")
    assert rows(elements) == table_rows(snapshot.in_flight())
    assert rows(elements.where("step = 'score'").select("element_id", "step")) == [
        (f"{steps['score'][n].in_flight[0].element_id}", "score") for n in range(2) if steps["score"][n].in_flight
    ]
    for step, value in values.items():
        one = read(source, store, what=f"{step}.in_flight")
        assert "step" not in one.columns
        assert [row["value"] for row in one.collect()] == [Row(**value) if isinstance(value, dict) else value]
    with pytest.raises(PySparkException, match="the snapshot has"):
        read(source, store, what="other.in_flight")
    frame = source.createDataFrame([("a", 1)], "key string, value long")
    with pytest.raises(PySparkException, match="write to the folder of a new operator"):
        frame.write.format("keygroups").mode("append").option("state", "other").save(store.uri)


def test_a_value_that_a_type_of_spark_would_change_is_refused_with_its_key(
    source: SparkSession, tmp_path: Path
) -> None:
    at = pa.array([1_000, 1_001], pa.timestamp("ns"))
    rows_ = pa.table({"key": ["whole", "fine"], "value": at})
    store = SnapshotStore(tmp_path, "times")
    store.bootstrap({ValueState("at", pa.timestamp("ns")): rows_}, parallelism=1)
    assert read(source, store).where("key = 'whole'").count() == 1
    with pytest.raises(PySparkException, match="column.*value|schema='value'.*'fine'"):
        read(source, store).collect()
    with pytest.raises(PySparkException, match="is not taken for"):
        source.read.format("keygroups").schema("key_group int, key string, value string").load(store.uri).collect()


@pytest.mark.thorough
def test_elements_in_flight_and_files_are_read(source: SparkSession, tmp_path: Path) -> None:
    store = layered(SnapshotStore(tmp_path, "enrich"))
    snapshot = store.latest()
    assert snapshot is not None
    assert rows(read(source, store, what="in_flight")) == table_rows(snapshot.in_flight())
    group = key_group_of("key 5", G)
    assert read(source, store, what="in_flight").where(f"key_group = {group}").count() == 1
    assert read(source, store, what="in_flight").where(f"key_group > {group}").count() == 0
    files = read(source, store, what="metadata").where("kind = 'delta'")
    assert {row["path"] for row in files.collect()} == {file.path for file in snapshot.manifest.files_of("delta")}


def test_lists_and_maps_are_read_and_written(source: SparkSession, tmp_path: Path) -> None:
    clicks, prices = ListState("clicks", pa.int64()), MapState("prices", pa.map_(pa.string(), pa.float64()))
    backend = MemoryBackend([clicks, prices], range_of(0, 1, G))
    backend.tables["clicks"].put(key_group_of("a", G), "a", SharedList([1, 2, 3]))
    backend.tables["clicks"].put(key_group_of("b", G), "b", SharedList([4]))
    store = SnapshotStore(tmp_path, "enrich")
    store.write([part(backend, 0, 1)])
    listed = read(source, store, what="clicks")
    assert rows(listed.select("key", "position", "value")) == [("a", 0, 1), ("a", 1, 2), ("a", 2, 3), ("b", 0, 4)]
    assert read(source, store, what="prices").count() == 0
    copy = SnapshotStore(tmp_path, "copy")
    write(listed.repartition(3), copy, state="clicks", parallelism=2, max_parallelism=G)
    mapped = source.sql("select 7L as key, explode(map('x', 1.0D, 'y', 2.0D)) as (map_key, value)")
    write(mapped, copy, state="prices")
    found = copy.load(2)
    assert table_rows(found.to_arrow("clicks")) == rows(listed)
    assert rows(read(source, copy, what="prices").select("key", "map_key", "value")) == [(7, "x", 1.0), (7, "y", 2.0)]
    broken = listed.where("position != 1")
    with pytest.raises(PySparkException, match="positions of a list"):
        write(broken, copy, mode="overwrite", state="clicks")


def test_filters_leave_out_files_and_row_groups(tmp_path: Path) -> None:
    keys = words(60_000)
    SnapshotStore(tmp_path, "enrich").write(
        parts({"count": {key: random.Random(key).randrange(10**9) for key in keys}}, [COUNT])
    )
    folder = CountingFolder(open_folder(f"{tmp_path}/enrich"))
    snapshot = SnapshotStore.on(folder).latest()
    assert snapshot is not None
    files = snapshot.manifest.files_of("keyed")
    magic = 4  # bytes at the start of a file
    whole = sum(file.bytes - file.footer_bytes - magic for file in files)

    def scan(*filters: Filter) -> tuple[int, set[str], int]:
        reader = SnapshotReader(snapshot, "count", stored_schema(snapshot, "count"))
        assert list(reader.pushFilters(list(filters))) == list(filters), "Spark looks at the rows"
        partitions = reader.partitions()
        folder.reset()
        found = [row for one in partitions for batch in reader.read(one) for row in batch.to_pylist()]
        footers = sum(file.footer_bytes for one in partitions for file in one.value.files)
        return len(found), {row["key"] for row in found}, folder.bytes_read - footers

    assert scan() == (len(keys), set(keys), whole)
    of_one_group = {key for key in keys if key_group_of(key, G) == key_group_of("key 7", G)}
    for one in (EqualTo(("key",), "key 7"), In(("key_group",), (key_group_of("key 7", G),))):
        count, found, bytes_read = scan(one)
        assert (count, found) == (len(of_one_group), of_one_group)
        assert bytes_read < whole / 5
    assert scan(EqualTo(("key",), "key 7"), GreaterThan(("key_group",), G)) == (0, set(), 0)
    assert scan(Not(EqualTo(("key",), "key 7")))[0] == len(keys)


@settings(max_examples=scaled(500))
@given(st.lists(st.tuples(st.sampled_from(range(7)), st.integers(-2, G + 1)), max_size=4), st.integers(0, G - 1))
def test_wanted_key_groups_are_those_that_all_filters_let_through(wanted: list[tuple[int, int]], first: int) -> None:
    makers: list[tuple[Callable[[int], Filter], Callable[[int, int], bool]]] = [
        (lambda n: EqualTo(("key_group",), n), lambda group, n: group == n),
        (lambda n: In(("key_group",), (n, n + 2)), lambda group, n: group in (n, n + 2)),
        (lambda n: GreaterThan(("key_group",), n), lambda group, n: group > n),
        (lambda n: GreaterThanOrEqual(("key_group",), n), lambda group, n: group >= n),
        (lambda n: LessThan(("key_group",), n), lambda group, n: group < n),
        (lambda n: LessThanOrEqual(("key_group",), n), lambda group, n: group <= n),
        (lambda n: EqualTo(("key",), n), lambda group, n: group == key_group_of(n, G)),
    ]
    groups = WantedKeyGroups(G, "xxhash64", pa.int64())
    groups.narrow(makers[kind][0](n) for kind, n in wanted)
    found = [group for low, high in groups.runs(first, G - 1) for group in range(low, high + 1)]
    assert found == [group for group in range(first, G) if all(makers[kind][1](group, n) for kind, n in wanted)]


def test_keys_that_the_column_does_not_tell_apart_are_not_pruned_by() -> None:
    for groups in (WantedKeyGroups(G, "flink", pa.int64()), WantedKeyGroups(G, "xxhash64", None)):
        groups.narrow([EqualTo(("key",), 7)])
        assert groups.runs(0, G - 1) == ((0, G - 1),)
    groups = WantedKeyGroups(G, "xxhash64", pa.int64())
    groups.narrow([EqualTo(("key",), "7"), In(("key",), (True,))])
    assert groups.runs(0, G - 1) == ((0, G - 1),)


def test_what_spark_has_no_type_for_is_refused(tmp_path: Path) -> None:
    store = SnapshotStore(tmp_path, "enrich")
    store.write(parts({"when": {}}, [ValueState("when", pa.uint64())]))
    snapshot = store.load(1)
    with pytest.raises(ConfigError, match=r"Snapshot\.to_arrow"):
        spark_schema(stored_schema(snapshot, "when"), "when")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"what": "nothing"}, "count, profile, in_flight, metadata"),
        ({}, "name one, 'in_flight' or 'metadata'"),
        ({"version": "first"}, "it must be a whole number"),
        ({"version": 9}, "no snapshot of version 9"),
        ({"wath": "count"}, "there is no such option"),
        ({"what": "count", "storage_options": "a=b"}, "JSON object"),
    ],
)
def test_wrong_options_are_refused(source: SparkSession, tmp_path: Path, options: dict[str, Any], message: str) -> None:
    store = SnapshotStore(tmp_path, "enrich")
    store.write(parts({"count": {"a": 1}, "profile": {"a": 2}}))
    with pytest.raises(PySparkException, match=message):
        read(source, store, **options).count()


def write(frame: DataFrame, store: SnapshotStore, mode: str = "append", **options: Any) -> None:
    frame.write.format("keygroups").mode(mode).options(**options).save(store.uri)


@pytest.mark.thorough
def test_a_written_state_is_restored_by_every_parallelism(source: SparkSession, tmp_path: Path) -> None:
    store = SnapshotStore(tmp_path, "enrich")
    users = source.range(0, 3000, 1, 5).selectExpr("concat('key ', id) as key", "id * 2 as value")
    write(users, store, state="count", parallelism=2, max_parallelism=G)
    snapshot = store.load(1)
    assert (snapshot.parallelism, snapshot.max_parallelism, snapshot.state_names) == (2, G, ("count",))
    wanted = {"count": {f"key {n}": 2 * n for n in range(3000)}}
    for parallelism in (1, 2, 3, G):
        assert content_of(snapshot, parallelism, [COUNT]) == wanted
    assert store.verify().ok
    assert list((tmp_path / "enrich").glob("data/*/staged*")) == []
    again = users.where("value < 20").selectExpr("key", "value + 1 as value")
    with pytest.raises(PySparkException, match="overwrite"):
        write(again, store, state="count")
    write(again, store, mode="overwrite", state="count")
    assert content_of(store.load(2), 2, [COUNT]) == {"count": {f"key {n}": 2 * n + 1 for n in range(10)}}


def test_states_are_added_to_each_other(source: SparkSession, tmp_path: Path) -> None:
    store = SnapshotStore(tmp_path, "enrich")
    ints = source.range(100).selectExpr("cast(id as int) as key", "named_struct('at', id, 'who', 'x') as value")
    write(ints, store, state="first", parallelism=3)
    floats = source.range(100).selectExpr("id * 0.5D - 10 as key", "date'2020-02-03' as value")
    write(floats, store, state="second")
    newest = store.load(2)
    assert newest.state_names == ("first", "second")
    assert newest.to_arrow("first").column("value").to_pylist()[0].keys() == {"at", "who"}
    assert sorted(newest.to_arrow("second").column("key").to_pylist()) == [n * 0.5 - 10 for n in range(100)]
    assert newest.to_arrow("second").schema.field("value").type == pa.date32()
    restore = newest.restore(0, 1).states(
        [
            ValueState("first", newest.to_arrow("first").schema.field("value").type),
            ValueState("second", pa.date32()),
        ]
    )
    assert set(restore) == {"first", "second"}


def test_keys_of_several_columns_and_of_any_type_that_has_a_key_group(source: SparkSession, tmp_path: Path) -> None:
    days = source.range(30).selectExpr(
        "named_struct('user', concat('u', id), 'day', date'2020-02-03') as key", "id as value"
    )
    store = SnapshotStore(tmp_path, "enrich")
    write(days, store, state="count", parallelism=2, max_parallelism=G)
    wanted = {(f"u{n}", dt.date(2020, 2, 3)): n for n in range(30)}
    assert content_of(store.load(1), 3, [COUNT]) == {"count": wanted}
    frame = read(source, store)
    assert frame.schema["key"].dataType.simpleString() == "binary"
    assert frame.where("value = 7").count() == 1


@pytest.mark.thorough
def test_a_write_that_fails_leaves_nothing_but_garbage(source: SparkSession, tmp_path: Path) -> None:
    store = SnapshotStore(tmp_path, "enrich")
    write(source.range(10).selectExpr("id as key", "id as value"), store, state="other", parallelism=2)
    boom = source.range(0, 100, 1, 4).selectExpr("id as key", "if(id = 77, raise_error('boom'), id) as value")
    twice = source.range(0, 100, 1, 4).selectExpr("id % 99 as key", "id as value")
    null = source.range(0, 100, 1, 4).selectExpr("nullif(id, 50) as key", "id as value")
    for frame, message in ((boom, "boom"), (twice, "twice; nothing was committed"), (null, "null key in key")):
        with pytest.raises(Exception, match=message):
            write(frame, store, state="count")
        assert store.versions() == [1]

    def only_needed_files_are_left() -> bool:
        assert store.collect_garbage(min_age=0, dry_run=False).undeleted == ()
        left = {str(path.relative_to(tmp_path / "enrich")) for path in (tmp_path / "enrich").glob("data/*/*")}
        return left == {file.path for file in store.load(1).manifest.files}

    # Spark does not wait for the other tasks of a query that has failed: they may still write.
    wait_until(only_needed_files_are_left)


def test_of_two_attempts_at_a_partition_and_two_writers_one_counts(tmp_path: Path) -> None:
    store = SnapshotStore(tmp_path, "enrich")
    options = SourceOptions({"path": store.uri, "state": "count", "parallelism": "2", "max_parallelism": str(G)})
    schema = StructType().add("key", StringType()).add("value", LongType())

    def batches(numbers: range) -> Iterator[pa.RecordBatch]:
        for n in numbers:
            yield pa.RecordBatch.from_pydict({"key": [f"key {n}"], "value": [n]})

    writer, other = StateWriter(options, schema, False), StateWriter(options, schema, False)
    task = pickle.loads(pickle.dumps(writer))
    lost, kept, second = (
        task.write(batches(range(50))),
        task.write(batches(range(50))),
        task.write(batches(range(50, 60))),
    )
    assert store.versions() == []
    late = other.write(batches(range(3)))
    writer.commit([kept, second])
    assert content_of(store.load(1), 2, [COUNT]) == {"count": {f"key {n}": n for n in range(60)}}
    with pytest.raises(CommitConflict):
        other.commit([late])
    other.abort([late, None])
    staged = {path.relative_to(tmp_path / "enrich").as_posix() for path in tmp_path.glob("enrich/data/*/staged*")}
    assert staged == {name for names in lost.by_subtask.values() for name in names}
    store.collect_garbage(min_age=0, dry_run=False)
    assert list(tmp_path.glob("enrich/data/*/staged*")) == []
    assert store.verify().ok


def test_a_state_that_an_operator_has_continued_is_not_written_over(source: SparkSession, tmp_path: Path) -> None:
    store = SnapshotStore(tmp_path, "enrich")
    store.write(parts({"count": {"a": 1}}, [COUNT]), source_position={"offset": 7})
    with pytest.raises(PySparkException, match="the folder of a new operator"):
        write(source.range(3).selectExpr("id as key", "id as value"), store, mode="overwrite", state="count")


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    first_is_quick(
        [
            ("id as key, id as value", {"parallelism": 2}, "state=None"),
            ("id as key, id as value", {"state": "count"}, "parallelism=None"),
            ("id as key, id as price", {"state": "count", "parallelism": 2}, "needs the columns key, value"),
            (
                "id as key, id as value, id as more",
                {"state": "count", "parallelism": 2},
                "a value state has key_group, key, value",
            ),
            ("make_dt_interval(id) as key, id as value", {"state": "count", "parallelism": 2}, "keys of type"),
            ("id as key, id as value", {"state": "count", "parallelism": 2, "kind": "set"}, "one of value"),
        ]
    ),
)
def test_what_cannot_be_written_is_refused(
    source: SparkSession, tmp_path: Path, columns: str, options: dict[str, Any], message: str
) -> None:
    store = SnapshotStore(tmp_path, "enrich")
    with pytest.raises(PySparkException, match=message):
        write(source.range(3).selectExpr(*columns.split(", ")), store, **options)
    assert store.versions() == []


def test_objects_in_a_bucket_are_written_and_read(source: SparkSession) -> None:
    with s3_server() as server:
        store = SnapshotStore(server.new_root(), "enrich", storage_options=server.options)
        options = {"storage_options": json.dumps(server.options)}
        write(source.range(50).selectExpr("id as key", "id as value"), store, state="count", parallelism=2, **options)
        assert rows(read(source, store, **options).select("key", "value")) == sorted(
            ((n, n) for n in range(50)), key=str
        )


def test_profiles_are_not_read_by_their_key() -> None:
    store = SnapshotStore(f"memory://{uuid.uuid4().hex}", "enrich")
    store.write(parts({"profile": {("a", 1): 2}}, [PROFILE]))
    snapshot = store.load(1)
    reader = SnapshotReader(snapshot, "profile", stored_schema(snapshot, "profile"))
    reader.pushFilters([EqualTo(("key",), b"\x92")])
    assert sum(batch.num_rows for one in reader.partitions() for batch in reader.read(one)) == 1


def test_a_state_without_a_key_is_read(source: SparkSession, tmp_path: Path) -> None:
    store, snapshot = written(store=SnapshotStore(tmp_path, "enrich"))
    for name in snapshot.operator_state_names:
        frame = source.read.format("keygroups").option("what", name).load(store.uri)
        expected = sorted((tuple(row.values()) for row in snapshot.to_arrow(name).to_pylist()), key=str)
        assert [(subtask, place, bytes(item)) for subtask, place, item in rows(frame)] == expected
    only = store.edit().drop("count").drop("profile").drop("seen").drop("rules").put_items(OFFSETS, []).commit()
    assert only.operator_state_names == ("offsets",)
    assert source.read.format("keygroups").load(store.uri).where("subtask = 0").count() == 0
