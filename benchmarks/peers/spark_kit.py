"""What the systems on Spark share: a session, events as micro-batches, and the sink that keeps what comes out."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyarrow import parquet
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import DataStreamWriter

from benchmarks._session import session
from benchmarks.peers.cases import KeyedCount, Rescale, counted
from benchmarks.peers.peer import Peer

PARTITIONS = 2
EVENT = "key bigint, state string"
COUNT = "key bigint, count bigint"
ALL_AT_ONCE = {"availableNow": True}
_STATE_STORE = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


class SparkPeer(Peer):
    """A system that runs on a session of Spark in its own process, with two processors."""

    packages = ("pyspark", "pyarrow")
    _session: SparkSession | None = None

    @property
    def spark(self) -> SparkSession:
        """The session, started when it is first asked for."""
        if self._session is None:
            self._session = session(PARTITIONS)
            self._session.sparkContext.setLogLevel("ERROR")
            for name, value in {
                "spark.sql.shuffle.partitions": PARTITIONS,
                "spark.sql.streaming.stateStore.providerClass": _STATE_STORE,
                "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": True,
            }.items():
                self._session.conf.set(name, value)
        return self._session

    def close(self) -> None:
        if self._session is not None:
            self._session.stop()

    def numbers(self, rows: int) -> DataFrame:
        """Return the integers from 0 in a column `id`, in one partition."""
        return self.spark.range(0, rows, 1, 1)

    def events(self, case: KeyedCount, folder: Path) -> DataFrame:
        """Write the events of a case; returns a stream with one micro-batch for each file."""
        (folder / "in").mkdir()
        for number, keys in enumerate(case.batches()):
            parquet.write_table(pa.table({"key": pa.array(keys, pa.int64())}), folder / "in" / f"{number:05}.parquet")
        return self.files(folder, "key bigint")

    def files(self, folder: Path, schema: str) -> DataFrame:
        """Return a stream of the files in the folder `in`, one in a micro-batch."""
        return self.spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(folder / "in"))


class Collected:
    """A sink that keeps the tables of all micro-batches; the same epoch again replaces its table."""

    def __init__(self) -> None:
        self.tables: dict[int, pa.Table] = {}

    def __call__(self, frame: DataFrame, epoch: int) -> None:
        self.tables[epoch] = frame.toArrow()

    def values(self) -> Iterator[int]:
        """Yield each row's key and number as one integer."""
        for table in self.tables.values():
            yield from map(counted, *(column.to_pylist() for column in table.columns))


def run_query(writer: DataStreamWriter, folder: Path) -> None:
    """Run a streaming query over all its input."""
    query = writer.option("checkpointLocation", str(folder / "checkpoint")).trigger(**ALL_AT_ONCE).start()
    query.awaitTermination()


def write_some_keys(case: Rescale, folder: Path, number: int) -> None:
    """Write the micro-batch of the first keys, as file number so and so."""
    (folder / "in").mkdir(exist_ok=True)
    keys = pa.array(range(case.restart_rows), pa.int64())
    empty = pa.array([""] * case.restart_rows, pa.string())
    parquet.write_table(pa.table({"key": keys, "state": empty}), folder / "in" / f"{number:05}.parquet")
