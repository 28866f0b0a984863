"""keygroups in a plain Python process: `async for` over a stream."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from async_op import AsyncDataStream
from benchmarks.peers.cases import CALL_SECONDS, CONCURRENCY, Case, answer
from benchmarks.peers.peer import Peer


async def call(row: int) -> int:
    """Ask the service."""
    await asyncio.sleep(CALL_SECONDS)
    return answer(row)


class Stream(Peer):
    """`AsyncDataStream.unordered_wait` over an iterable."""

    title = "keygroups, `AsyncDataStream` in Python"
    cases = ("enrichment",)
    packages = ("keygroups",)
    lacks = "one process; no snapshots (a `Job` has them)"

    def prepare(self, case: Case, folder: Path) -> Callable[[], list[int]]:
        async def work() -> list[int]:
            stream = AsyncDataStream.unordered_wait(range(case.rows), call, capacity=CONCURRENCY)
            return [output async for output in stream]

        return lambda: asyncio.run(work())


PEER = Stream()
