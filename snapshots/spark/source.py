"""Snapshots as a Spark data source: `spark.read.format("keygroups")`, and `df.write.format("keygroups")`."""

from __future__ import annotations

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceWriter
from pyspark.sql.types import StructType

from keygroups.errors import ConfigError
from keygroups.spark.session import choose_python
from snapshots.restore.snapshot import Snapshot
from snapshots.spark.options import SourceOptions
from snapshots.spark.reading import reader_of, spark_schema, stored_schema
from snapshots.spark.writing import StateWriter


def register(spark: SparkSession) -> None:
    """Register the format `keygroups` with a session, and let Spark push filters to it.

    Options of a read: `path` (the argument of `load`) or `uri`, the folder of one operator; `version`, by default the
    newest; `what`, the name of a state (with or without a key), `in_flight` for the elements in flight or `metadata`
    for the files, by default the only state; `storage_options` as a JSON object. A DataFrame keeps reading the version
    that was the newest when it was created. It has the columns of `Snapshot.to_arrow` and `Snapshot.in_flight`.
    Filters on `key_group`, and on `key` if all keys have the same type, skip files and row groups.

    Options of a write, whose mode is `append` or `overwrite`: `state`, the name of the state; `parallelism` and
    `max_parallelism` of a first snapshot; `kind` for a `reducing` or `aggregating` state. The columns are `key` and
    `value`, with `position` for a list and `map_key` for a map. A write creates a first snapshot, or adds a state to a
    snapshot that no operator has continued. Rows may be in any partition; the driver holds the rows of one subtask in
    memory at a time.

    Parameters
    ----------
    spark : SparkSession
        Classic or Connect. `spark.sql.python.filterPushdown.enabled` is set for all its Python data sources.

    Examples
    --------
    >>> register(spark)  # doctest: +SKIP
    >>> visits = spark.read.format("keygroups").option("what", "visits").load("/data/snapshots/count")  # doctest: +SKIP
    >>> visits.where("key = 'ann'").show()  # doctest: +SKIP
    >>> (users.selectExpr("name as key", "visits as value").write.format("keygroups").mode("append")
    ...     .option("state", "visits").option("parallelism", 4).save("/data/snapshots/count"))  # doctest: +SKIP
    """
    choose_python(spark)
    spark.dataSource.register(SnapshotDataSource)
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")


class SnapshotDataSource(DataSource):
    """The format `keygroups`; see `register`."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return "keygroups"

    def schema(self) -> StructType:
        """Return the columns, and fix the version that will be read."""
        snapshot = self._snapshot()
        return spark_schema(stored_schema(snapshot, self._what(snapshot)), self._what(snapshot))

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of the fixed version."""
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
        snapshot = options.store().load(options.number("version"))
        # Spark keeps a pickle of this object, so later calls read the version that `schema` has used.
        self.options["version"] = str(snapshot.version)
        return snapshot

    def _what(self, snapshot: Snapshot) -> str:
        what = SourceOptions(self.options).text("what")
        names = [*snapshot.state_names, *snapshot.operator_state_names]
        if what is None and len(names) == 1:
            return names[0]
        if what is None:
            reason = f"the snapshot has the states {names}: name one, 'in_flight' or 'metadata'"
            raise ConfigError("what", None, reason)
        return what
