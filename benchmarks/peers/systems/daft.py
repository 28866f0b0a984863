"""Daft's asynchronous functions: `daft.func` over an `async def`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from benchmarks.peers.cases import CALL_SECONDS, CONCURRENCY, Case, answer
from benchmarks.peers.peer import Peer


class Daft(Peer):
    """A column computed by an `async def`, as Daft's guide to user-defined functions does it."""

    title = "Daft, `daft.func`"
    cases = ("enrichment",)
    requirements = ("daft==0.7.26",)
    packages = ("daft",)
    lacks = "batch only: no stream, no state, no snapshots of calls under way"

    def prepare(self, case: Case, folder: Path) -> Callable[[], list[int]]:
        import daft

        @daft.func(return_dtype=daft.DataType.int64(), max_concurrency=CONCURRENCY)
        async def call(row: int) -> int:
            await asyncio.sleep(CALL_SECONDS)
            return answer(row)

        rows = daft.from_pydict({"id": list(range(case.rows))})
        answers = rows.select(call(rows["id"]).alias("answer"))
        return lambda: answers.collect().to_pydict()["answer"]


PEER = Daft()
