"""A pool of coroutines, written by hand for Spark's `mapInArrow`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pyarrow as pa

from benchmarks.peers.cases import CALL_SECONDS, CONCURRENCY, Case, answer
from benchmarks.peers.spark_kit import SparkPeer


def call_all(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Share the rows of a partition among coroutines that each make one call after the other."""
    rows = (row for batch in batches for row in batch.column("id").to_pylist())
    answers: list[int] = []

    async def call_each() -> None:
        for row in rows:
            await asyncio.sleep(CALL_SECONDS)
            answers.append(answer(row))

    async def call_together() -> None:
        await asyncio.gather(*(call_each() for _ in range(CONCURRENCY)))

    asyncio.run(call_together())
    yield pa.record_batch({"answer": pa.array(answers, pa.int64())})


class MapInArrow(SparkPeer):
    """The least that a pool needs, and no more."""

    title = "`mapInArrow` with a pool written by hand"
    cases = ("enrichment",)
    lacks = (
        "no order, timeout, retry or state; outputs of a partition stay in memory until its last call; "
        "a task that is run again makes its calls again"
    )

    def prepare(self, case: Case, folder: Path) -> Callable[[], Iterable[int]]:
        answers = self.numbers(case.rows).mapInArrow(call_all, "answer bigint")
        return lambda: answers.toArrow()["answer"].to_pylist()


PEER = MapInArrow()
