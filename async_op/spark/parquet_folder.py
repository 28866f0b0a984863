"""A folder of Parquet files as a table, which Spark's executors write: a folder for each epoch."""

from __future__ import annotations

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from async_op.connectors.errors import TargetTaken
from keygroups.errors import ConfigError
from keygroups.representation import representation
from snapshots.filesystem import redacted

_PARTITION = "epoch"
"""The column that readers of a folder of Parquet files take from the names of its folders."""

_OWNER = "_lineage"
"""The folder that says whose epochs are there. Readers of Parquet skip what begins with an underscore."""


class ParquetFolder:
    """A sink that replaces the folder of an epoch that comes again.

    Parameters
    ----------
    folder : str
        The folder, as Spark names it.

    Attributes
    ----------
    lineage : str
        What no other pipeline has; "" compares nothing.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self.lineage = ""
        self._is_ours = False

    def __repr__(self) -> str:
        return representation(self, {"folder": redacted(self._folder)})

    def prepare(self, names: list[str]) -> None:
        """Raise `ConfigError` if a column has the name of the folders: it would be lost when the table is read.

        Spark and most readers compare names without their case.
        """
        for name in names:
            if name.casefold() == _PARTITION:
                reason = f"folders of epochs have this name, and readers would take it from them: rename {name!r}"
                raise ConfigError("output_schema", names, reason)

    def expect(self, lineage: str) -> None:
        """Take what tells the pipeline from others that write into the same folder."""
        self.lineage, self._is_ours = lineage, False

    def __call__(self, batch_df: DataFrame, epoch: int) -> None:
        """Write the folder of an epoch, or replace it.

        Raises
        ------
        TargetTaken
            The folder has epochs of another pipeline.
        """
        if self.lineage and not self._is_ours:
            self._claim(batch_df.sparkSession)
            self._is_ours = True
        batch_df.write.mode("overwrite").parquet(f"{self._folder}/{_PARTITION}={epoch}")

    def _claim(self, spark: SparkSession) -> None:
        """Note whose epochs are in the folder, unless that is noted already; of two pipelines, one at most has it."""
        owners = self._owners(spark)
        if not owners:
            note = spark.createDataFrame([(self.lineage,)], "lineage string").coalesce(1)
            # A crash may have left a note without content. A note that is there by now stays.
            note.write.mode("ignore" if owners is None else "overwrite").text(f"{self._folder}/{_OWNER}")
            owners = self._owners(spark)
        if owners != {self.lineage}:
            folder = redacted(self._folder)
            advice = f"write to another folder, or remove {_OWNER} from this one if that pipeline is gone"
            raise TargetTaken(folder, folder, advice)

    def _owners(self, spark: SparkSession) -> set[str] | None:
        """Return whose epochs are in the folder, by its note; None if there is no note."""
        try:
            return {row.value for row in spark.read.text(f"{self._folder}/{_OWNER}").collect()}
        except AnalysisException as error:
            if error.getCondition() != "PATH_NOT_FOUND":
                raise
            return None
