"""Spark's offline repartition of state: the checkpoint of a stopped query is written again."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import pyarrow as pa
from pyarrow import parquet
from pyspark.sql import functions as F

from benchmarks.peers.cases import Case, Rescale, state_of
from benchmarks.peers.peer import Unavailable
from benchmarks.peers.spark_kit import EVENT, PARTITIONS, Collected, SparkPeer, run_query, write_some_keys


class OfflineRepartition(SparkPeer):
    """Of the state of an aggregation in the JVM, the cheapest that Spark has."""

    title = "Spark, offline repartition"
    cases = ("rescale",)
    lacks = "experimental, not part of the public interface; only while the query is stopped"

    def prepare(self, case: Case, folder: Path) -> Callable[[], Iterable[int]]:
        assert isinstance(case, Rescale)
        manager = getattr(self.spark, "_streamingCheckpointManager", None)
        if manager is None:
            raise Unavailable("this Spark has no offline repartition; it came with 4.2")
        (folder / "in").mkdir()
        keys = pa.array(range(case.rows), pa.int64())
        states = pa.array(map(state_of, range(case.rows)), pa.string())
        parquet.write_table(pa.table({"key": keys, "state": states}), folder / "in" / "state.parquet")
        self._greatest(folder)
        write_some_keys(case, folder, 0)
        self._greatest(folder)
        write_some_keys(case, folder, 1)

        def work() -> Iterable[int]:
            manager.repartition(str(folder / "checkpoint"), PARTITIONS + 1)
            return self._greatest(folder).values()

        return work

    def _greatest(self, folder: Path) -> Collected:
        """Run the query over the files that it has not had."""
        sink = Collected()
        greatest = self.files(folder, EVENT).groupBy("key").agg(F.max("state").cast("bigint").alias("count"))
        run_query(greatest.writeStream.outputMode("update").foreachBatch(sink), folder)
        return sink


PEER = OfflineRepartition()
