"""Spark's `transformWithStateInPandas`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

from benchmarks.peers.cases import Case, KeyedCount
from benchmarks.peers.spark_kit import COUNT, Collected, SparkPeer, run_query


class Count(StatefulProcessor):
    """Counts the events of each key."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.seen = handle.getValueState("seen", "count bigint")

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:  # noqa: N802, N803 - Spark's names
        state = self.seen.get()
        count = state[0] if state is not None else 0
        for frame in rows:
            yield pd.DataFrame({"key": key[0], "count": np.arange(count + 1, count + len(frame) + 1)})
            count += len(frame)
        self.seen.update((count,))

    def close(self) -> None:
        pass


class TransformWithStateInPandas(SparkPeer):
    """With state in RocksDB and a log of changes, as Spark's guide recommends."""

    title = "Spark, `transformWithStateInPandas`"
    cases = ("count", "small-batches")
    packages = (*SparkPeer.packages, "pandas", "protobuf")
    lacks = "no asynchronous calls; the number of state partitions is fixed while the query runs"

    def prepare(self, case: Case, folder: Path) -> Callable[[], Iterable[int]]:
        assert isinstance(case, KeyedCount)
        sink = Collected()
        counts = self.events(case, folder).groupBy("key").transformWithStateInPandas(Count(), COUNT, "update", "none")
        writer = counts.writeStream.outputMode("update").foreachBatch(sink)

        def work() -> Iterable[int]:
            run_query(writer, folder)
            return sink.values()

        return work


PEER = TransformWithStateInPandas()
