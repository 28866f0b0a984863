"""Snapshots as a Spark data source: `spark.read.format("keygroups")`, and `df.write.format("keygroups")`."""

from __future__ import annotations

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceWriter
from pyspark.sql.types import StructType

from keygroups.errors import ConfigError
from snapshots.errors import SnapshotNotFound
from snapshots.snapshot import Snapshot
from snapshots.spark.options import SourceOptions
from snapshots.spark.reading import reader_of, spark_schema, stored_schema
from snapshots.spark.writing import StateWriter


def register(spark: SparkSession) -> None:
    """Make the format `keygroups` known to a session, and let Spark push filters to it.

    Options of a read: `path` (the argument of `load`) or `uri`, one operator's folder; `version`, the newest unless
    given; `what`, the name of a state, `in_flight` for the elements in flight or `metadata` for the files, by default
    the only state; `storage_options` as a JSON object. A DataFrame keeps the version that was the newest when it was
    made. What is read are the columns of `Snapshot.to_arrow` and `Snapshot.in_flight`. Filters on `key_group`, and on
    `key` where keys are of one type, leave out files and row groups.

    Options of a write, of which the mode is `append` or `overwrite`: `state`, its name; `parallelism` and
    `max_parallelism` of a first snapshot; `kind` for a `reducing` or `aggregating` state. The columns are `key` and
    `value`, with `position` for a list and `map_key` for a map. It adds a state to a snapshot that no operator has
    continued, or begins one. Rows may be in any partitions; the driver has those of one subtask in memory at a time.

    Parameters
    ----------
    spark : SparkSession
        Classic or Connect. For all its Python data sources `spark.sql.python.filterPushdown.enabled` is set.

    Examples
    --------
    >>> register(spark)  # doctest: +SKIP
    >>> visits = spark.read.format("keygroups").option("what", "visits").load("/data/snapshots/count")  # doctest: +SKIP
    >>> visits.where("key = 'ann'").show()  # doctest: +SKIP
    >>> (users.selectExpr("name as key", "visits as value").write.format("keygroups").mode("append")
    ...     .option("state", "visits").option("parallelism", 4).save("/data/snapshots/count"))  # doctest: +SKIP
    """
    spark.dataSource.register(SnapshotDataSource)
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")


class SnapshotDataSource(DataSource):
    """The format `keygroups`; see `register`."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return "keygroups"

    def schema(self) -> StructType:
        """Return the columns, and settle the version that will be read."""
        snapshot = self._snapshot()
        return spark_schema(stored_schema(snapshot, self._what(snapshot)), self._what(snapshot))

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of the version that was settled."""
        snapshot = self._snapshot()
        return reader_of(snapshot, self._what(snapshot), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return the writer of a state."""
        options = SourceOptions(self.options)
        options.check()
        return StateWriter(options, schema, overwrite)

    def _snapshot(self) -> Snapshot:
        options = SourceOptions(self.options)
        options.check()
        store = options.store()
        version = options.number("version")
        snapshot = store.latest() if version is None else store.load(version)
        if snapshot is None:
            raise SnapshotNotFound(store.uri)
        # Spark keeps this object's pickle: later calls read what `schema` has looked at.
        self.options["version"] = str(snapshot.version)
        return snapshot

    def _what(self, snapshot: Snapshot) -> str:
        what = SourceOptions(self.options).text("what")
        if what is None and len(snapshot.state_names) == 1:
            return snapshot.state_names[0]
        if what is None:
            reason = f"the snapshot has the states {list(snapshot.state_names)}: name one, 'in_flight' or 'metadata'"
            raise ConfigError("what", None, reason)
        return what
