"""Ray Data's asynchronous actors: `Dataset.map` with a class whose `__call__` is a coroutine function."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.peers.cases import CALL_SECONDS, CONCURRENCY, Case, answer
from benchmarks.peers.peer import Peer


class Call:
    """Asks the service."""

    async def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        await asyncio.sleep(CALL_SECONDS)
        return {"answer": answer(row["id"])}


class Ray(Peer):
    """One actor, which is allowed as many calls as the others; Ray's default is 16."""

    title = "Ray Data, asynchronous actor"
    cases = ("enrichment",)
    requirements = ("ray[data]==2.60.0",)
    packages = ("ray",)
    lacks = "batch only: no stream, no state, no snapshots of calls under way; outputs stay in input order"

    def prepare(self, case: Case, folder: Path) -> Callable[[], list[int]]:
        # Ray reads it once, when its module is imported.
        os.environ["RAY_DATA_DEFAULT_ASYNC_ROW_UDF_MAX_CONCURRENCY"] = str(CONCURRENCY)
        import ray

        if not ray.is_initialized():
            ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
        ray.data.DataContext.get_current().enable_progress_bars = False
        answers = ray.data.range(case.rows).map(Call, compute=ray.data.ActorPoolStrategy(size=1))
        return lambda: answers.to_pandas()["answer"].tolist()

    def close(self) -> None:
        import ray

        ray.shutdown()


PEER = Ray()
