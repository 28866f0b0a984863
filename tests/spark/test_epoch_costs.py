"""What an epoch costs above its rows and calls: requests to the JVM and to the storage, Spark's jobs, files."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from py4j.clientserver import JavaClient
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession

from async_op import AsyncFunction
from async_op.spark.epoch.runner import EpochRunner
from keygroups import ValueState
from snapshots.filesystem import LocalFolder
from tests.spark.runs import PipelineRun

cloudpickle.register_pickle_by_value(sys.modules[__name__])

COUNT = ValueState("count", pa.int64(), default=0)
EPOCHS, ROWS, PARALLELISM = 4, 20, 2
REQUESTS = ("create", "write", "replace", "read", "size", "names", "files", "sizes", "delete")


class Count(AsyncFunction):
    """Numbers the rows of each key."""

    states = (COUNT,)

    async def async_invoke(self, value: dict[str, Any], ctx: Any) -> list[Any]:
        count = ctx.state(COUNT)
        count.update(count.value() + 1)
        return [(value["id"], count.value())]


class Costs:
    """Counts what the thread of an epoch asks for."""

    def __init__(self, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
        self.epochs: list[Counter[str]] = []
        self._spark = spark
        self._thread: int | None = None
        self._count(monkeypatch, JavaClient, "send_command", self._command)
        for request in REQUESTS:
            self._count(monkeypatch, LocalFolder, request, lambda *_, request=request: request)
        run_batch = EpochRunner.run_batch

        def counted(*arguments: Any) -> None:
            self.epochs.append(Counter())
            self._thread, before = threading.get_ident(), self._jobs()
            try:
                run_batch(*arguments)
            finally:
                self._thread = None
                self.epochs[-1]["jobs"] = self._jobs() - before

        monkeypatch.setattr(EpochRunner, "run_batch", counted)

    def _count(self, monkeypatch: pytest.MonkeyPatch, kind: type, name: str, what: Any) -> None:
        method = getattr(kind, name)

        def counted(*arguments: Any, **options: Any) -> Any:
            if threading.get_ident() == self._thread:
                self.epochs[-1][what(*arguments)] += 1
            return method(*arguments, **options)

        monkeypatch.setattr(kind, name, counted)

    @staticmethod
    def _command(_: Any, command: str, *others: Any) -> str:
        # Python forgets its references to the JVM's objects whenever it likes.
        return "forgotten" if command.startswith("m\nd\n") else "asked of the JVM"

    def _jobs(self) -> int:
        return int(self._spark._jsparkSession.sparkContext().statusStore().jobsList(None).size())  # type: ignore[attr-defined]


@pytest.fixture
def costs(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Costs:
    return Costs(spark, monkeypatch)


@pytest.fixture
def run(spark: SparkSession, tmp_path: Path) -> Iterator[PipelineRun]:
    run = PipelineRun(
        spark,
        tmp_path,
        Count(),
        "id bigint, user string",
        key_by="user",
        order_by=None,
        output_schema="id bigint, count bigint",
        operator_id="costs",
        retention=None,
    )
    for epoch in range(EPOCHS):
        rows = spark.range(epoch * ROWS, (epoch + 1) * ROWS)
        run.write_file(rows.selectExpr("id", "concat('u', id % 40) as user"))
    yield run
    run.stop()


@pytest.mark.thorough
def test_an_epoch_has_one_job_and_few_requests(run: PipelineRun, costs: Costs) -> None:
    sink, handed = run.sink, list[DataFrame]()

    def keep(batch: DataFrame, epoch: int) -> None:
        sink(batch, epoch)
        handed.append(batch)

    run.sink = keep  # type: ignore[method-assign]
    run.run()
    epoch = costs.epochs[-1]
    assert len(costs.epochs) == EPOCHS
    assert epoch.pop("asked of the JVM") <= 150
    epoch.pop("forgotten", None)
    # The claim is checked, the newest epoch is delivered, parts are checked (which lists the folder of each on a disk),
    # the manifest is written and read back. Before and after, the mark of what has expired is listed.
    listings = {"names": 3, "sizes": 1, "files": PARALLELISM}
    assert epoch == {"jobs": 1, "read": 2, "size": 2, "create": 1, "replace": 2} | listings
    assert len(handed) == EPOCHS


def test_an_epoch_writes_two_files_for_each_subtask(run: PipelineRun) -> None:
    run.run()
    newest, before = run.store.load(EPOCHS), run.store.load(EPOCHS - 1)
    files = {file.path for file in newest.manifest.files} - {file.path for file in before.manifest.files}
    assert len(files) == 2 * PARALLELISM
    written = sum(len(run.store.load(version).manifest.files_of("output")) for version in range(1, EPOCHS + 1))
    assert written == EPOCHS * PARALLELISM
