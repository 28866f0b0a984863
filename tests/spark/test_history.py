"""Checkpoints and snapshots that belong together go on; others are refused, unless the user says what counts."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from async_op import AsyncFunction, RepartitionUndone
from async_op.spark import UnrelatedHistories
from async_op.spark.epoch.checkpoint import Checkpoint
from async_op.spark.epoch.history import Adopt, join_histories
from async_op.spark.rows.keys import KeyColumn
from async_op.spark.rows.routing import Routing
from keygroups import ConfigError, ValueState
from snapshots import CommitConflict, IncompatibleSnapshot, SnapshotStore
from snapshots.upkeep.bootstrap import move_source
from tests.snapshot_kit import G, new_store, parts
from tests.spark.runs import PipelineRun

cloudpickle.register_pickle_by_value(sys.modules[__name__])

COUNT = ValueState("count", pa.int64(), default=0)
ROWS_PER_FILE = 12
KEYS = 3
USER = (KeyColumn(("user",), "string"),)


class Count(AsyncFunction):
    """Numbers the rows of each key."""

    states = (COUNT,)

    async def async_invoke(self, value: dict[str, Any], ctx: Any) -> list[Any]:
        count = ctx.state(COUNT)
        count.update(count.value() + 1)
        return [(value["id"], str(ctx.key), count.value())]


class Run(PipelineRun):
    def __init__(self, spark: SparkSession, folder: Path) -> None:
        super().__init__(
            spark,
            folder,
            Count(),
            "id bigint, user string, other bigint",
            key_by="user",
            output_schema="id bigint, user string, count bigint",
            operator_id="count",
        )
        self.files = 0

    def add_file(self) -> None:
        first = self.files * ROWS_PER_FILE
        rows = self.spark.range(first, first + ROWS_PER_FILE)
        self.write_file(rows.selectExpr("id", f"concat('u', id % {KEYS}) as user", f"id % {KEYS} as other"))
        self.files += 1

    def start_adopting(self, adopt: Adopt | None, **options: Any) -> None:
        pipeline = self.pipeline(**options)
        arguments = {"checkpoint_location": self.folder / "checkpoint", "trigger": {"availableNow": True}}
        pipeline.start(self.stream(maxFilesPerTrigger=1), self.sink, adopt=adopt, **arguments).awaitTermination()

    def counts(self, after_epoch: int = 0) -> list[tuple[Any, ...]]:
        return sorted(row for epoch, rows in self.delivered.items() if epoch > after_epoch for row in rows)

    @property
    def newest_epoch(self) -> int:
        return max(self.delivered)


def counted(files: range, before: int = 0) -> list[tuple[int, str, int]]:
    """Return the outputs for files, of keys that had been counted so often before."""
    first = files[0] * ROWS_PER_FILE
    ids = range(first, (files[-1] + 1) * ROWS_PER_FILE)
    return [(n, f"u{n % KEYS}", before + (n - first) // KEYS + 1) for n in ids]


PER_FILE = ROWS_PER_FILE // KEYS


@pytest.fixture
def run(spark: SparkSession, tmp_path: Path) -> Iterator[Run]:
    run = Run(spark, tmp_path)
    run.add_file()
    run.add_file()
    yield run
    run.stop()


def refused(run: Run, adopt: Adopt | None, match: str, **options: Any) -> None:
    """A start that is refused changes nothing: no version is committed, so whoever runs is not fenced."""
    before, deliveries = run.store.versions(), run.deliveries.copy()
    with pytest.raises((UnrelatedHistories, IncompatibleSnapshot), match=match):
        run.start_adopting(adopt, **options)
    assert (run.store.versions(), run.deliveries) == (before, deliveries)


@pytest.mark.spark
def test_a_new_checkpoint_over_kept_state_is_refused_or_continues_with_the_state(run: Run) -> None:
    run.run()
    shutil.rmtree(run.folder / "checkpoint")
    epoch = run.newest_epoch
    refused(run, None, "checkpoint is new: rows that are in the state would count again.*adopt='state'")

    run.start_adopting("state")
    assert run.counts(after_epoch=epoch) == counted(range(2), before=2 * PER_FILE)
    run.add_file()
    run.start_adopting(None)
    assert run.counts(after_epoch=epoch) == counted(range(3), before=2 * PER_FILE)


@pytest.mark.spark
@pytest.mark.thorough
def test_a_start_that_undoes_a_repartition_warns(run: Run) -> None:
    run.run()
    run.store.repartition(3)
    run.add_file()
    with pytest.warns(RepartitionUndone, match="repartitioned to 3 subtasks, and parallelism=2 undoes that"):
        run.start_adopting(None)
    run.add_file()
    run.start_adopting(None)  # without a warning: the newest snapshot has the parallelism of its epoch

    assert run.counts() == counted(range(4))


@pytest.mark.spark
def test_the_snapshots_of_a_job_are_refused(run: Run) -> None:
    pending = run.store.begin()
    cuts = parts({"count": {"ann": 1}}, [COUNT], 2)
    pending.commit([pending.write_subtask(cut, step="count") for cut in cuts])
    refused(run, None, "written by a job")


@pytest.mark.thorough
@pytest.mark.spark
def test_a_new_checkpoint_may_also_begin_with_empty_state(run: Run) -> None:
    run.run()
    shutil.rmtree(run.folder / "checkpoint")
    epoch = run.newest_epoch
    run.start_adopting("checkpoint", parallelism=3)
    assert run.counts(after_epoch=epoch) == counted(range(2))
    assert run.store.verify().ok


@pytest.mark.spark
def test_a_kept_checkpoint_over_lost_state_is_refused_or_continues_with_epochs_that_no_sink_has_seen(run: Run) -> None:
    run.run()
    shutil.rmtree(run.folder / "snapshots")
    epoch = run.newest_epoch
    run.add_file()
    refused(run, None, "has completed batch 1, but .* has no state of its query.*adopt='checkpoint'")
    refused(run, "state", "adopt='checkpoint'")

    run.start_adopting("checkpoint")
    assert run.counts(after_epoch=epoch) == counted(range(2, 3))
    run.add_file()
    run.start_adopting(None)
    assert run.counts(after_epoch=epoch) == counted(range(2, 4))
    assert run.deliveries[epoch] == 1
    assert run.store.verify().ok


@pytest.mark.thorough
@pytest.mark.spark
def test_what_an_older_checkpoint_brings_again_is_not_dropped(run: Run) -> None:
    run.run()
    shutil.copytree(run.folder / "checkpoint", run.folder / "old checkpoint")
    epoch = run.newest_epoch
    run.add_file()
    run.run()
    shutil.rmtree(run.folder / "checkpoint")
    (run.folder / "old checkpoint").rename(run.folder / "checkpoint")
    refused(run, None, "has batch 2, but .* ends before it")

    newest = run.newest_epoch
    run.start_adopting("state")
    assert run.counts(after_epoch=newest) == counted(range(2, 3), before=3 * PER_FILE)
    assert epoch < newest


@pytest.mark.spark
def test_older_snapshots_are_refused(run: Run) -> None:
    run.run()
    shutil.copytree(run.folder / "snapshots", run.folder / "old snapshots")
    run.add_file()
    run.run()
    shutil.rmtree(run.folder / "snapshots")
    (run.folder / "old snapshots").rename(run.folder / "snapshots")
    refused(run, None, "has completed batch 2, but .* ends with batch 1")


@pytest.mark.spark
def test_other_keys_are_refused_whatever_is_to_be_adopted(run: Run) -> None:
    run.run()
    for adopt in (None, "state", "checkpoint"):
        refused(run, adopt, "key columns .*'user string'.*'other bigint'.*cannot be adopted", key_by="other")
    refused(run, None, "'user string, other bigint'", key_by=["user", "other"])
    run.schema = "id bigint, user binary, other bigint"
    refused(run, None, "'user binary'")


@pytest.mark.spark
def test_a_checkpoint_is_read_wherever_it_is(spark: SparkSession, tmp_path: Path) -> None:
    root = tmp_path / "a [1] {b} c*"  # letters that Spark's readers take for patterns
    assert Checkpoint.read(spark, str(root)) == Checkpoint(str(root), None, -1, -1)
    for log, batches in {"commits": range(8, 11), "offsets": range(9, 12)}.items():
        (root / log).mkdir(parents=True)
        for name in [*batches, ".11.crc", "_temporary"]:
            (root / log / str(name)).touch()
    (root / "metadata").write_text('{"id":"the query"}')
    assert Checkpoint.read(spark, str(root)) == Checkpoint(str(root), "the query", 10, 11)
    assert Checkpoint.read(spark, f"file://{root}").committed == 10


def store_after(batch_id: int, query_id: str | None = "q", **position: Any) -> SnapshotStore:
    """Return a store whose newest snapshot is that of a batch."""
    store = new_store()
    position = {"query_id": query_id, "batch_id": batch_id, "keys": [{"column": "user", "type": "string"}], **position}
    store.write(parts({"count": {"ann": 1}}, [COUNT], 1), source_position=position)
    return store


def join(store: SnapshotStore, checkpoint: Checkpoint, adopt: Adopt | None = None, keys: Any = USER) -> None:
    join_histories(store, checkpoint, Routing(keys, "xxhash64", G, [], StructType()), adopt, parallelism=1)


def checkpoint_at(committed: int, begun: int | None = None, query_id: str | None = "q") -> Checkpoint:
    return Checkpoint("checkpoint", query_id, committed, committed if begun is None else begun)


NEW = checkpoint_at(-1, query_id=None)
TOGETHER = {
    "nothing yet": (new_store, NEW),
    "the first batch failed": (new_store, checkpoint_at(-1, 0)),
    "state to begin with": (lambda: store_after(-1, None), NEW),
    "after a batch": (lambda: store_after(4), checkpoint_at(4)),
    "between Spark's commit and the next batch": (lambda: store_after(4), checkpoint_at(4, 5)),
    "before Spark's commit": (lambda: store_after(4), checkpoint_at(3, 4)),
}
APART = {
    "snapshots lost": (new_store, checkpoint_at(0), "no state of its query"),
    "state of nobody under a checkpoint": (lambda: store_after(-1, None), checkpoint_at(2), "no state of its query"),
    "checkpoint lost": (lambda: store_after(0), NEW, "checkpoint is new"),
    "checkpoint of another query": (lambda: store_after(4), checkpoint_at(4, query_id="p"), "belongs to query p"),
    "older snapshots": (lambda: store_after(3), checkpoint_at(4), "ends with batch 3"),
    "older checkpoint": (lambda: store_after(6), checkpoint_at(4, 5), "ends before it"),
}


@pytest.mark.parametrize("case", TOGETHER)
@pytest.mark.parametrize("adopt", [None, "state", "checkpoint"])
def test_what_belongs_together_continues_whatever_is_to_be_adopted(case: str, adopt: Adopt | None) -> None:
    make, checkpoint = TOGETHER[case]
    store = make()
    before = store.versions()
    join(store, checkpoint, adopt)
    assert store.versions() == before


@pytest.mark.parametrize("case", APART)
def test_what_does_not_is_refused_and_says_how_to_continue(case: str) -> None:
    make, checkpoint, reason = APART[case]
    store = make()
    before = store.versions()
    with pytest.raises(UnrelatedHistories, match=f"{reason}.*start\\(..., adopt='checkpoint'\\)") as refusal:
        join(store, checkpoint)
    assert (refusal.value.snapshots, refusal.value.checkpoint) == (store.uri, "checkpoint")
    assert len(refusal.value.ways) == (2 if before else 1)
    assert store.versions() == before


@pytest.mark.parametrize("case", APART)
@pytest.mark.parametrize("adopt", ["state", "checkpoint"])
def test_what_is_adopted_belongs_together_from_then_on(case: str, adopt: Adopt) -> None:
    make, checkpoint, _ = APART[case]
    store = make()
    before = store.latest()
    if before is None and adopt == "state":
        with pytest.raises(UnrelatedHistories, match="no state of its query"):
            join(store, checkpoint, adopt)
        return
    join(store, checkpoint, adopt)
    latest = store.latest()
    assert latest is not None
    assert before is None or latest.version == before.version + 1
    assert latest.state_names == (("count",) if adopt == "state" else ())
    join(store, checkpoint)
    assert store.newest_version() == latest.version


CHANGES: dict[str, Callable[[SnapshotStore], object]] = {
    "claim": lambda store: store.claim(),
    "repartition": lambda store: store.repartition(2),
    "rewrite": lambda store: store.repartition(2, max_parallelism=2 * G, rewrite=True),
    "compaction": lambda store: store.compact(),
    "edit": lambda store: store.edit().drop("count").commit(),
}


@pytest.mark.parametrize("change", CHANGES)
def test_the_history_stays_known_through_a_change_of_the_snapshots(change: str) -> None:
    store = store_after(4)
    CHANGES[change](store)
    join(store, checkpoint_at(4))
    with pytest.raises(UnrelatedHistories):
        join(store, NEW)
    with pytest.raises(IncompatibleSnapshot):
        join(store, checkpoint_at(4), keys=(KeyColumn(("user",), "bigint"),))


def test_a_copy_belongs_to_the_same_checkpoint() -> None:
    copy = new_store()
    store_after(4).copy_to(copy)
    join(copy, checkpoint_at(4))


def test_a_snapshot_of_a_release_that_did_not_store_its_keys_continues() -> None:
    store = store_after(4)
    latest = store.latest()
    assert latest is not None
    move_source(latest, {"query_id": "q", "batch_id": 4})
    join(store, checkpoint_at(4))


def test_another_writer_meanwhile_is_not_overwritten() -> None:
    store = store_after(4)
    old = store.latest()
    assert old is not None
    store.repartition(2)
    with pytest.raises(CommitConflict):
        move_source(old, {})


def test_an_unknown_way_to_adopt_is_refused() -> None:
    with pytest.raises(ConfigError, match="adopt='both'"):
        join(new_store(), NEW, "both")  # type: ignore[arg-type]


@pytest.mark.spark
def test_of_two_queries_that_start_with_nothing_the_later_one_does_not_continue_from_what_it_has_not_restored(
    run: Run,
) -> None:
    (run.folder / "later").mkdir()
    stream = run.spark.readStream.schema(run.schema).parquet(str(run.folder / "later"))
    late = run.pipeline().start(stream, run.sink, checkpoint_location=run.folder / "late")
    late.processAllAvailable()
    run.run()
    before = run.store.load().manifest

    shutil.copytree(run.folder / "in", run.folder / "later", dirs_exist_ok=True)
    with pytest.raises(StreamingQueryException, match="version 1 .* was committed by another writer"):
        late.processAllAvailable()

    assert run.store.load().manifest == before
