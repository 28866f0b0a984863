"""Two pipelines with one operator id share no idempotency keys, and a pipeline keeps its lineage."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession

from async_op import AsyncFunction
from async_op.spark import AsyncPipeline
from keygroups import ConfigError
from snapshots import IncompatibleSnapshot, SnapshotStore

cloudpickle.register_pickle_by_value(sys.modules[__name__])

pytestmark = pytest.mark.spark


class Pay(AsyncFunction):
    """Logs its calls, and sets a timer that is due at once."""

    def __init__(self, log: Path) -> None:
        self.log = log

    async def async_invoke(self, value: dict[str, Any], ctx: Any) -> list[Any]:
        self.note(value["id"], ctx)
        ctx.timers.register(7)
        return [(value["id"],)]

    async def on_timer(self, timestamp: int, ctx: Any) -> list[Any]:
        self.note("timer", ctx)
        return []

    def note(self, what: Any, ctx: Any) -> None:
        with self.log.open("a") as log:
            log.write(json.dumps([what, ctx.idempotency_key]) + "\n")


def test_two_pipelines_of_one_operator_id_share_no_keys(spark: SparkSession, tmp_path: Path) -> None:
    log = tmp_path / "calls"

    def pipeline(folder: str, **options: Any) -> AsyncPipeline:
        return AsyncPipeline(
            Pay(log), key_by="id", output_schema="id bigint", snapshots=tmp_path / folder, operator_id="pay",
            parallelism=1, resident=False, **options,
        )  # fmt: skip

    for folder, options in (("monday", {}), ("tuesday", {"idempotency_namespace": "tuesday"})):
        pipeline(folder, **options).run(spark.range(2), lambda batch, epoch: None, run_id="all")
    keys = [key for _, key in map(json.loads, log.read_text().splitlines())]
    lineages = {SnapshotStore(tmp_path / folder, "pay").load().manifest.lineage for folder in ("monday", "tuesday")}
    assert len(set(keys)) == 2 * 2 * 2
    assert {key.split("/")[0] for key in keys} == lineages
    assert "tuesday" in lineages

    with pytest.raises(IncompatibleSnapshot, match="'tuesday', but 'other'"):
        other = pipeline("tuesday", idempotency_namespace="other")
        other.run(spark.range(2), lambda batch, epoch: None, run_id="more")
    with pytest.raises(ConfigError, match="idempotency_namespace="):
        pipeline("a", idempotency_namespace="x").then(pipeline("b", idempotency_namespace="x"))
