"""Files that Spark has written, as the source of a job without Spark."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet
from pyspark.sql import SparkSession

from async_op.connectors import FileSource
from tests.async_op.job.kit import Epochs, new_job, same

pytestmark = pytest.mark.spark

CITIES = ["Oslo", "São Paulo", "a=b", "50 %", "a/b:c", "[x]", "back\\slash", " ", None]
YEARS = [1, 1500, 2024, 9999]
_FORM = "spark.sql.parquet.outputTimestampType"


def outputs_of(source: FileSource) -> list[Any]:
    sink = Epochs()
    asyncio.run(new_job(source, same, sink).run())
    return sorted(sink.values, key=lambda row: row["id"])


def test_folders_of_partitions_are_fields(spark: SparkSession, tmp_path: Path) -> None:
    rows = [{"id": number, "year": "2024", "city": city} for number, city in enumerate(CITIES)]
    frame = spark.createDataFrame([tuple(row.values()) for row in rows], "id bigint, year string, city string")
    frame.write.partitionBy("year", "city").json(str(tmp_path / "data"))

    assert outputs_of(FileSource(tmp_path / "data" / "**" / "*.json", "json", hive_partitioning=True)) == rows


@pytest.mark.parametrize("form", ["INT96", "TIMESTAMP_MICROS"])
def test_a_timestamp_is_an_instant_in_whichever_form_and_year(spark: SparkSession, tmp_path: Path, form: str) -> None:
    literals = [f"{year:04}-03-04 05:06:07.123456" for year in YEARS]
    frame = spark.createDataFrame(list(enumerate(literals)), "id bigint, text string").selectExpr(
        "id",
        "cast(concat(text, 'Z') as timestamp) as at",
        "cast(text as timestamp_ntz) as local",
        "array(named_struct('at', cast(concat(text, 'Z') as timestamp))) as all",
    )
    spark.conf.set(_FORM, form)
    try:
        frame.coalesce(1).write.parquet(str(tmp_path / "data"))
    finally:
        spark.conf.unset(_FORM)
    [file] = (tmp_path / "data").glob("*.parquet")
    assert (parquet.ParquetFile(file).schema.column(1).physical_type == "INT96") == (form == "INT96")

    local = [datetime(year, 3, 4, 5, 6, 7, 123456) for year in YEARS]
    assert outputs_of(FileSource(tmp_path / "data" / "*.parquet", "parquet")) == [
        {"id": number, "at": at, "local": at.replace(tzinfo=None), "all": [{"at": at}]}
        for number, at in enumerate(one.replace(tzinfo=UTC) for one in local)
    ]
