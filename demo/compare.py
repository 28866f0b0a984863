"""The same enrichment by a plain Spark SQL batch job, and the comparison with what the pipeline delivered.

`python -m demo.compare FOLDER` compares the run in that folder once more; `--damage` spoils one delivered row first,
to show that the comparison would have seen it.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from demo.session import start_spark
from demo.workspace import Workspace

_BATCH_JOB = """
    SELECT f.flight_id, coalesce(f.tailnum, concat(f.carrier, f.flight)) AS aircraft,
           f.scheduled_departure, f.carrier, f.flight, f.origin, f.dest, f.arr_delay,
           w.temp, w.wind_speed, w.visib, p.manufacturer, p.model, p.seats,
           last(f.arr_delay, true) OVER (
               PARTITION BY coalesce(f.tailnum, concat(f.carrier, f.flight))
               ORDER BY f.scheduled_departure, f.flight_id
               ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
           ) AS previous_arrival_delay
      FROM {flights} AS f
      LEFT JOIN {weather} AS w ON w.origin = f.origin AND w.time_hour = f.time_hour
      LEFT JOIN {planes} AS p ON p.tailnum = f.tailnum
"""

_LISTED = 10


@dataclass(frozen=True, slots=True)
class Comparison:
    """What the comparison found.

    Attributes
    ----------
    expected, delivered : int
        Rows of the batch job, rows of the pipeline.
    different : int
        Flights that are missing, delivered more than once, unknown, or have another value somewhere.
    examples : tuple of str
        The first few of them, in words.
    """

    expected: int
    delivered: int
    different: int
    examples: tuple[str, ...]

    @property
    def equal(self) -> bool:
        """Whether every flight was delivered exactly once with every value equal."""
        return self.expected == self.delivered and self.different == 0


def batch_job(spark: SparkSession, workspace: Workspace) -> DataFrame:
    """Enrich all flights of the stream by joins and a window."""
    return spark.sql(
        _BATCH_JOB,
        flights=spark.read.parquet(str(workspace.flights)),
        weather=spark.read.parquet(str(workspace.tables / "weather.parquet")),
        planes=spark.read.parquet(str(workspace.tables / "planes.parquet")),
    )


def delivered_rows(spark: SparkSession, workspace: Workspace) -> DataFrame:
    """Read what the sink holds, of all epochs."""
    return spark.read.parquet(str(workspace.delivered)).drop("epoch")


def damaged(delivered: DataFrame, damage: str) -> DataFrame:
    """Drop, double or change the first flight that has a previous delay.

    Parameters
    ----------
    delivered : DataFrame
        The pipeline's rows.
    damage : {"drop", "double", "change"}
        What to do to it.
    """
    victim = delivered.filter("previous_arrival_delay IS NOT NULL").agg(F.min("flight_id")).head()
    assert victim is not None
    hit = F.col("flight_id") == victim[0]
    if damage == "drop":
        return delivered.filter(~hit)
    if damage == "double":
        return delivered.union(delivered.filter(hit))
    delay = F.col("previous_arrival_delay")
    return delivered.withColumn("previous_arrival_delay", F.when(hit, delay + 1).otherwise(delay))


def compare(expected: DataFrame, delivered: DataFrame) -> Comparison:
    """Compare row by row, null equal to null."""
    by_flight = Window.partitionBy("flight_id").orderBy("flight_id")
    numbered = delivered.withColumns(
        {"copies": F.count("*").over(Window.partitionBy("flight_id")), "copy": F.row_number().over(by_flight)}
    )
    names = [name for name in expected.columns if name != "flight_id"]
    verdicts = (
        expected.withColumn("known", F.lit(True))
        .alias("e")
        .join(numbered.alias("d"), "flight_id", "full_outer")
        .select("flight_id", "known", "copies", (F.coalesce("copy", F.lit(1)) == 1).alias("first"), _verdict(names))
    )
    counts = verdicts.agg(
        F.count_if(F.expr("known AND first")).alias("expected"),
        F.count("copies").alias("delivered"),
        F.count_if(F.expr("verdict IS NOT NULL AND first")).alias("different"),
    ).first()
    assert counts is not None, "an aggregate has a row"
    return Comparison(**counts.asDict(), examples=_examples(verdicts) if counts["different"] else ())


def _examples(verdicts: DataFrame) -> tuple[str, ...]:
    wrong = verdicts.filter("verdict IS NOT NULL AND first").orderBy("flight_id").limit(_LISTED)
    return tuple(f"flight {row['flight_id']}: {row['verdict']}" for row in wrong.collect())


def _verdict(names: Sequence[str]) -> Column:
    differences = F.concat_ws("; ", *(_difference(name) for name in names))
    verdict = (
        F.when(F.col("copies").isNull(), F.lit("not delivered"))
        .when(F.col("known").isNull(), F.lit("delivered, but the batch job has no such flight"))
        .when(F.col("copies") > 1, F.concat(F.lit("delivered "), F.col("copies"), F.lit(" times")))
        .when(differences != "", differences)
    )
    return verdict.alias("verdict")


def _difference(name: str) -> Column:
    expected, delivered = F.col(f"e.{name}"), F.col(f"d.{name}")
    text = F.format_string(f"{name} is %s, expected %s", delivered.cast("string"), expected.cast("string"))
    return F.when(~expected.eqNullSafe(delivered), text)


def main() -> int:
    """Compare a run's rows with the batch job's.

    Returns
    -------
    int
        The exit code: 0 if all are equal, else 1.
    """
    parser = argparse.ArgumentParser(prog="python -m demo.compare", description=__doc__)
    parser.add_argument("folder", type=Path, help="the output folder of a run made with --keep")
    parser.add_argument("--damage", choices=["drop", "double", "change"], help="spoil one delivered row before")
    arguments = parser.parse_args()
    workspace = Workspace(arguments.folder.resolve())
    spark = start_spark("comparison")
    delivered = delivered_rows(spark, workspace)
    if arguments.damage:
        delivered = damaged(delivered, arguments.damage)
    comparison = compare(batch_job(spark, workspace), delivered)
    workspace.comparison.write_text(json.dumps(asdict(comparison), indent=2))
    spark.stop()
    print(f"{comparison.delivered:,} rows delivered, {comparison.expected:,} expected")
    print(f"{comparison.different:,} flights differ", *comparison.examples, sep="\n  ")
    return 0 if comparison.equal else 1


if __name__ == "__main__":
    sys.exit(main())
