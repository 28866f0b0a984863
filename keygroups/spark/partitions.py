"""Runs a function in each partition of a DataFrame, whatever its columns are called and even if it has no rows.

And sends what the function yields to the JVM at once.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from types import FrameType

import pyarrow as pa
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.types import StructType

from keygroups.spark.session import choose_python, is_connect

PartitionFunction = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]

_ADAPTIVE = "spark.sql.adaptive.enabled"

_planning = threading.Lock()
"""Held while the setting is off: two threads of one session would otherwise take each other's for the user's."""


def no_rows(spark: SparkSession, partitions: int) -> DataFrame:
    """Return a DataFrame without rows for which Spark still runs a task in each partition."""
    return spark.range(0, partitions, 1, partitions).where("id < 0")


def map_in_arrow(frame: DataFrame, function: PartitionFunction, schema: StructType | str) -> DataFrame:
    """Return `frame.mapInArrow(function, schema)`, also for columns with a dot or a backtick in their name.

    PySpark looks up each column by its name, where a dot means a field of a struct. Such columns get other names on the
    way to Python.
    """
    choose_python(frame.sparkSession)
    names = tuple(frame.columns)
    if not any("." in name or "`" in name for name in names):
        return frame.mapInArrow(function, schema)
    return frame.toDF(*(f"_{place}" for place in range(len(names)))).mapInArrow(_Renamed(function, names), schema)


@dataclass(frozen=True, slots=True)
class _Renamed:
    """Gives batches the names of their columns back."""

    function: PartitionFunction
    names: tuple[str, ...]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return self.function(batch.rename_columns(list(self.names)) for batch in batches)


def run_in_partitions(
    frame: DataFrame, partitions: int, function: PartitionFunction, schema: StructType | str
) -> list[Row]:
    """Run a function in each partition of a DataFrame, and collect what it yields.

    Spark runs no task for a plan that it finds to be empty. In that case the function runs in the same number of
    partitions without rows.
    """
    mapped = map_in_arrow(frame, function, schema)
    if not is_connect(mapped):
        _plan_at_once(mapped)
    found = mapped.collect()
    return found or no_rows(frame.sparkSession, partitions).mapInArrow(function, schema).collect()


def flusher() -> Callable[[], object]:
    """Return a function that sends to the JVM at once what the calling generator has yielded.

    Spark itself sends only when 64 KB have gathered (unless `spark.python.udf.pipelined.enabled` is set, since 4.3).
    So outputs of slow calls would wait for more, and a worker would learn late that its task was cancelled. The stream
    is found as an argument of `Serializer.dump_stream`, which runs the generator; without it, the function does
    nothing.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == "dump_stream" and "stream" in frame.f_locals:
            flush: Callable[[], object] = frame.f_locals["stream"].flush
            return flush
        frame = frame.f_back
    return lambda: None


def _plan_at_once(frame: DataFrame) -> None:
    """Have Spark plan a DataFrame without adaptive execution, which is off for this moment only.

    Adaptive execution runs the shuffle as a job of its own and plans again after it. Here it can change nothing for the
    better, because the number of partitions is fixed. A client of Spark Connect cannot plan, so it leaves adaptive
    execution on.
    """
    settings = frame.sparkSession.conf
    with _planning:
        before = settings.get(_ADAPTIVE)
        settings.set(_ADAPTIVE, "false")
        try:
            frame._jdf.queryExecution().executedPlan()
        finally:
            settings.set(_ADAPTIVE, str(before))
