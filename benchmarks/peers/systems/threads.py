"""A thread pool in plain Python."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.peers.cases import CALL_SECONDS, CONCURRENCY, Case, answer
from benchmarks.peers.peer import Peer


def call(row: int) -> int:
    """Ask the service."""
    time.sleep(CALL_SECONDS)
    return answer(row)


class Threads(Peer):
    """A thread for each call under way."""

    title = "`ThreadPoolExecutor.map`"
    cases = ("enrichment",)
    lacks = "one process; all rows are in memory; no state, no snapshots"

    def prepare(self, case: Case, folder: Path) -> Callable[[], list[int]]:
        def work() -> list[int]:
            with ThreadPoolExecutor(CONCURRENCY) as pool:
                return list(pool.map(call, range(case.rows)))

        return work


PEER = Threads()
