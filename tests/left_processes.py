"""A function that leaves processes behind, as functions do that start an executor and do not shut it down."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import time
from concurrent.futures import ProcessPoolExecutor
from typing import Any

from async_op import AsyncFunction, InvocationContext


class LeavesProcesses(AsyncFunction[Any, int]):
    """Returns the process of an executor, and a daemon process."""

    async def open(self, runtime: Any) -> None:
        spawn = multiprocessing.get_context("spawn")
        self.executor = ProcessPoolExecutor(1, mp_context=spawn)
        self.daemon = spawn.Process(target=time.sleep, args=(1000,), daemon=True)
        self.daemon.start()

    async def async_invoke(self, value: Any, ctx: InvocationContext) -> list[int]:
        assert self.daemon.pid is not None
        return [await asyncio.get_running_loop().run_in_executor(self.executor, os.getpid), self.daemon.pid]
