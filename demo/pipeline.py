"""The pipeline, as a user would write it; a process of its own, because the demo kills it.

`python -m demo.pipeline FOLDER …` reads the stream from the folder, and continues where an earlier run stopped.
"""

from __future__ import annotations

import argparse
import itertools
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from async_op.spark import AsyncPipeline
from demo.data import FLIGHT_COLUMNS
from demo.enrichment import OUTPUT_SCHEMA, FlightEnrichment
from demo.latency import Latency
from demo.session import start_spark
from demo.workspace import CAPACITY, OPERATOR_ID, TIMEOUT_SECONDS, Workspace

MAX_PARALLELISM = 128


def flight_stream(spark: SparkSession, folder: Path) -> DataFrame:
    """Read the flights as a stream, one file a micro-batch, with the key of their state.

    A flight without a tail number has no known aircraft: carrier and flight number stand in for it.
    """
    schema = ", ".join(f"{name} {kind}" for name, kind in FLIGHT_COLUMNS.items())
    files = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(folder))
    return files.withColumn("aircraft", F.coalesce("tailnum", F.concat("carrier", F.col("flight").cast("string"))))


def run_pipeline(
    spark: SparkSession, workspace: Workspace, function: FlightEnrichment, parallelism: int, rescales: dict[int, int]
) -> None:
    """Enrich all flights that wait in the folder, and finish what is in flight.

    Parameters
    ----------
    spark : SparkSession
        Runs the query.
    workspace : Workspace
        The folder of the run.
    function : FlightEnrichment
        What is applied.
    parallelism : int
        Subtasks at the start.
    rescales : dict of int to int
        After so many deliveries by this run, so many subtasks from the next epoch on, without a restart.
    """
    pipeline = AsyncPipeline(
        function,
        key_by="aircraft",
        order_by=["scheduled_departure", "flight_id"],
        output_schema=OUTPUT_SCHEMA,
        snapshots=str(workspace.snapshots),
        operator_id=OPERATOR_ID,
        parallelism=parallelism,
        max_parallelism=MAX_PARALLELISM,
        # In order for each aircraft. In mode "ordered", one slow call would hold the places of all that came after it.
        mode="key_ordered",
        capacity=CAPACITY,
        timeout=TIMEOUT_SECONDS,
    )

    deliveries = itertools.count(1)

    def deliver(rows: DataFrame, epoch: int) -> None:
        # The epoch names the folder, so a second delivery of an epoch replaces the first.
        rows.write.mode("overwrite").parquet(str(workspace.delivered / f"epoch={epoch}"))
        print(f"delivered epoch {epoch}", flush=True)
        if parallelism_next := rescales.get(next(deliveries)):
            pipeline.rescale(parallelism_next)

    query = pipeline.start(
        flight_stream(spark, workspace.flights),
        deliver,
        checkpoint_location=str(workspace.checkpoint),
        trigger={"availableNow": True},
    )
    query.awaitTermination()


def main() -> None:
    """Run the pipeline once, to the end of the stream."""
    parser = argparse.ArgumentParser(prog="python -m demo.pipeline", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--socket", required=True)
    parser.add_argument("--parallelism", type=int, required=True)
    parser.add_argument("--rescale", type=_rescale, nargs="*", default=[], metavar="DELIVERIES:PARALLELISM")
    parser.add_argument("--latency", type=float, required=True)
    parser.add_argument("--seed", type=int, required=True)
    arguments = parser.parse_args()
    workspace = Workspace(arguments.folder)
    latency = Latency(arguments.latency, arguments.seed)
    function = FlightEnrichment(arguments.socket, latency, workspace.samples)
    rescales = dict(arguments.rescale)
    spark = start_spark("flight enrichment", tasks=max(arguments.parallelism, *rescales.values(), 1))
    run_pipeline(spark, workspace, function, arguments.parallelism, rescales)


def _rescale(text: str) -> tuple[int, int]:
    deliveries, _, parallelism = text.partition(":")
    return int(deliveries), int(parallelism)


if __name__ == "__main__":
    main()
