"""The mistakes of a first hour, as the page on troubleshooting shows them: what it quotes is what a user sees."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession

from async_op import AsyncFunction
from async_op.spark import AsyncPipeline

cloudpickle.register_pickle_by_value(sys.modules[__name__])

pytestmark = pytest.mark.spark

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "troubleshooting.md"


async def typo(row: Any) -> Any:
    return {"id": row["id"], "price": prise}  # type: ignore[name-defined]  # noqa: F821 - the mistake


class Prices(AsyncFunction):
    async def open(self, runtime: Any) -> None:
        self.token = os.environ["PRICES_TOKEN"]

    async def async_invoke(self, row: Any, ctx: Any) -> list[Any]:
        return [row]


async def column(row: Any) -> Any:
    return {"id": row["id"], "price": row["prise"]}


async def good(row: Any) -> Any:
    return {"id": row["id"], "price": 1.0}


MISTAKES: dict[str, tuple[Callable[..., Any] | AsyncFunction, str, str, list[str]]] = {
    "typo": (typo, "id", "", ["ElementFailed: attempt 1 of element", "NameError: name 'prise' is not"]),
    "open": (
        Prices(),
        "id",
        "",
        [
            "OpenFailed: open() of Prices has failed at",
            "KeyError: 'PRICES_TOKEN'",
            'self.token = os.environ["PRICES_TOKEN"]',
        ],
    ),
    "column": (column, "id", "", ["KeyError: 'prise'"]),
    "key column": (good, "usr", "", ["keygroups.errors.ConfigError: key_by='usr': the columns are ['id', 'user']"]),
    "another Python": (good, "id", "-I -S", ["UnsuitableWorkerPython: Spark's workers run", "set PYSPARK_PYTHON="]),
    "null key": (good, "user", "", ["NullKey: null key in element", "fill it in (coalesce) or filter"]),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_what_the_page_quotes_is_what_a_user_sees(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mistake: str
) -> None:
    function, key, python, quoted = MISTAKES[mistake]
    if python:
        executable = tmp_path / "python"
        executable.write_text(f'#!/bin/sh\nexec {sys.executable} {python} "$@"\n')
        executable.chmod(0o755)
        monkeypatch.setattr(spark.sparkContext, "pythonExec", str(executable))
    spark.sql("select 1L as id, cast(null as bigint) as user").coalesce(1).write.parquet(str(tmp_path / "in"))
    pipeline = AsyncPipeline(
        function,
        key_by=key,
        output_schema="id bigint, price double",
        snapshots=tmp_path / "snapshots",
        operator_id="prices",
        parallelism=1,
        resident=False,
    )
    stream = spark.readStream.schema("id bigint, user bigint").parquet(str(tmp_path / "in"))
    where: dict[str, Any] = {"checkpoint_location": tmp_path / "checkpoint", "trigger": {"availableNow": True}}
    with pytest.raises(Exception, match=r"\w") as raised:
        pipeline.start(stream, lambda batch, epoch: batch.collect(), **where).awaitTermination()
    shown = " ".join("".join(traceback.format_exception(raised.value)).replace("^", "").split())
    page = " ".join(PAGE.read_text(encoding="utf-8").split())
    assert [text for text in quoted if text not in shown] == []
    assert [text for text in quoted if text not in page] == []
