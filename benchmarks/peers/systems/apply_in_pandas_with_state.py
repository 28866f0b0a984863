"""Spark's `applyInPandasWithState`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout

from benchmarks.peers.cases import Case, KeyedCount
from benchmarks.peers.spark_kit import COUNT, Collected, SparkPeer, run_query


def count_events(key: Any, frames: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
    """Count the events of a key."""
    count = state.get[0] if state.exists else 0
    for frame in frames:
        yield pd.DataFrame({"key": key[0], "count": np.arange(count + 1, count + len(frame) + 1)})
        count += len(frame)
    state.update((count,))


class ApplyInPandasWithState(SparkPeer):
    """With state in RocksDB and a log of changes, as Spark's guide recommends."""

    title = "Spark, `applyInPandasWithState`"
    cases = ("count", "small-batches")
    packages = (*SparkPeer.packages, "pandas")
    lacks = "no asynchronous calls, one state of a key; the number of state partitions is fixed while the query runs"

    def prepare(self, case: Case, folder: Path) -> Callable[[], Iterable[int]]:
        assert isinstance(case, KeyedCount)
        sink = Collected()
        counts = (
            self.events(case, folder)
            .groupBy("key")
            .applyInPandasWithState(count_events, COUNT, "count bigint", "update", GroupStateTimeout.NoTimeout)
        )
        writer = counts.writeStream.outputMode("update").foreachBatch(sink)

        def work() -> Iterable[int]:
            run_query(writer, folder)
            return sink.values()

        return work


PEER = ApplyInPandasWithState()
