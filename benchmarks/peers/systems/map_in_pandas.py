"""`asyncio.gather` for a batch of rows after the other, in Spark's `mapInPandas`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pandas as pd

from benchmarks.peers.cases import CALL_SECONDS, CONCURRENCY, Case, answer
from benchmarks.peers.spark_kit import SparkPeer


async def call(row: int) -> int:
    """Ask the service."""
    await asyncio.sleep(CALL_SECONDS)
    return answer(row)


async def call_all(rows: list[int]) -> list[int]:
    """Ask it for all rows at once."""
    return await asyncio.gather(*map(call, rows))


def gathered(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    """Wait for all calls of some rows before those of the next ones begin."""
    for frame in frames:
        for start in range(0, len(frame), CONCURRENCY):
            rows = frame["id"].iloc[start : start + CONCURRENCY].tolist()
            yield pd.DataFrame({"answer": asyncio.run(call_all(rows))})


class MapInPandas(SparkPeer):
    """What is found in most answers to the question."""

    title = "`mapInPandas` with `asyncio.gather`"
    cases = ("enrichment",)
    packages = (*SparkPeer.packages, "pandas")
    lacks = (
        "each batch waits for its slowest call; no timeout, retry or state; a task that is run again makes its "
        "calls again"
    )

    def prepare(self, case: Case, folder: Path) -> Callable[[], Iterable[int]]:
        answers = self.numbers(case.rows).mapInPandas(gathered, "answer bigint")
        return lambda: answers.toArrow()["answer"].to_pylist()


PEER = MapInPandas()
