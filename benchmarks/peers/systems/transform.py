"""keygroups as a transform of a Spark DataFrame."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from async_op import AsyncDataStream, AsyncFunction
from benchmarks.peers.cases import CALL_SECONDS, CONCURRENCY, Case, answer
from benchmarks.peers.spark_kit import SparkPeer


class Call(AsyncFunction):
    """Asks the service."""

    async def async_invoke(self, value: Any, ctx: Any) -> Iterable[tuple[int]]:
        await asyncio.sleep(CALL_SECONDS)
        return [(answer(value["id"]),)]


class Transform(SparkPeer):
    """`AsyncDataStream.unordered_wait` over a DataFrame of one partition."""

    title = "keygroups, `AsyncDataStream` on Spark"
    cases = ("enrichment",)
    packages = ("keygroups", *SparkPeer.packages)
    lacks = "no state (`AsyncPipeline` has it); a task that is run again makes its calls again"

    def prepare(self, case: Case, folder: Path) -> Callable[[], Iterable[int]]:
        rows = self.numbers(case.rows)
        answers = AsyncDataStream.unordered_wait(rows, Call(), output_schema="answer bigint", capacity=CONCURRENCY)
        return lambda: answers.toArrow()["answer"].to_pylist()


PEER = Transform()
