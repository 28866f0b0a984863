"""PyFlink's asynchronous operator."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path

from benchmarks.peers.cases import CALL_SECONDS, CONCURRENCY, Case, answer
from benchmarks.peers.peer import Peer
from benchmarks.peers.systems.flink import Flink


class PyFlink(Peer):
    """`AsyncDataStream.unordered_wait` over a collection, with one slot."""

    title = "PyFlink, `AsyncDataStream`"
    cases = ("enrichment",)
    requirements = Flink.requirements
    packages = ("apache-flink",)
    lacks = "no keyed state in the function; a checkpoint waits for all calls under way; checkpoints were off"

    def prepare(self, case: Case, folder: Path) -> Callable[[], list[int]]:
        from pyflink.common import Time, Types
        from pyflink.datastream import AsyncDataStream, AsyncFunction, StreamExecutionEnvironment

        class Call(AsyncFunction):  # type: ignore[misc]
            async def async_invoke(self, value: int) -> list[int]:
                await asyncio.sleep(CALL_SECONDS)
                return [answer(value)]

        environment = StreamExecutionEnvironment.get_execution_environment()
        environment.set_parallelism(1)
        environment.set_python_executable(sys.executable)
        rows = environment.from_collection(list(range(case.rows)), type_info=Types.LONG())
        answers = AsyncDataStream.unordered_wait(rows, Call(), Time.seconds(60), CONCURRENCY, Types.LONG())
        return lambda: list(answers.execute_and_collect())


PEER = PyFlink()
