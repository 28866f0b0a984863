"""Reads the statistics of operators and jobs when metrics are requested, from any thread."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Protocol

from async_op.metrics.families import Family
from async_op.metrics.jobs import JobFigures, job_families
from async_op.metrics.operators import operator_families
from async_op.metrics.totals import EventTotals
from async_op.operator.operator import AsyncWaitOperator
from async_op.statistics import OperatorStatistics
from keygroups.events import listen

_WAIT_SECONDS = 1.0
_FRESH_SECONDS = 0.1
"""OpenTelemetry reads one instrument after the other; within this time they all show the same moment."""


class WatchedJob(Protocol):
    """A `Job`, which is made of other rooms than this one."""

    def progress(self) -> JobFigures:
        """Return what it has done; any thread may ask."""
        ...


class Watches:
    """The watched operators and jobs, and the sums over the events of this process. Any thread may call it.

    Watching costs nothing: statistics are read only when metrics are requested.
    """

    def __init__(self) -> None:
        self.totals = EventTotals()
        self._stop = listen(self.totals.add)
        self._lock = threading.Lock()
        self._watched: dict[tuple[str, int], _Watched] = {}
        self._jobs: dict[str, WatchedJob] = {}

    def add(self, name: str, operator: AsyncWaitOperator, *, subtask_index: int = 0) -> Callable[[], None]:
        """Watch an operator; it replaces an earlier one with the same name and subtask. Returns a function that stops.

        Parameters
        ----------
        name : str
            The value of the label `operator`.
        operator : AsyncWaitOperator
            An open operator. Call `add` on its event loop.
        subtask_index : int
            The value of the label `subtask`.
        """
        place, watched = (name, subtask_index), _Watched(operator, asyncio.get_running_loop())
        with self._lock:
            self._watched[place] = watched

        def stop() -> None:
            with self._lock:
                if self._watched.get(place) is watched:
                    del self._watched[place]

        return stop

    def add_job(self, job: WatchedJob) -> Callable[[], None]:
        """Watch a job; it replaces an earlier one with the same id. Returns a function that stops.

        Parameters
        ----------
        job : Job
            A job, which need not run yet. Its id is the value of the label `job`.
        """
        name = job.progress().job_id
        with self._lock:
            self._jobs[name] = job

        def stop() -> None:
            with self._lock:
                if self._jobs.get(name) is job:
                    del self._jobs[name]

        return stop

    def families(self) -> list[Family]:
        """Return the current metrics that have a value."""
        with self._lock:
            watched, jobs = list(self._watched.items()), list(self._jobs.values())
        found = [({"operator": name, "subtask": str(subtask)}, one.read()) for (name, subtask), one in watched]
        families = [*operator_families(found), *job_families(job.progress() for job in jobs), *self.totals.families()]
        return [family for family in families if family.samples]

    def close(self) -> None:
        """Stop listening to events."""
        self._stop()


class _Watched:
    """One watched operator. If its loop does not answer, for instance because it has ended, the last values count."""

    def __init__(self, operator: AsyncWaitOperator, loop: asyncio.AbstractEventLoop) -> None:
        self._operator = operator
        self._loop = loop
        self._last = operator.statistics()
        self._read_at = float("-inf")

    def read(self) -> OperatorStatistics:
        if _is_on(self._loop):
            return self._read()
        if self._loop.is_running() and time.monotonic() - self._read_at > _FRESH_SECONDS:
            try:
                return asyncio.run_coroutine_threadsafe(self._ask(), self._loop).result(_WAIT_SECONDS)
            except (FutureTimeout, RuntimeError):
                return self._last
        return self._last

    async def _ask(self) -> OperatorStatistics:
        return self._read()

    def _read(self) -> OperatorStatistics:
        self._last, self._read_at = self._operator.statistics(), time.monotonic()
        return self._last


def _is_on(loop: asyncio.AbstractEventLoop) -> bool:
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        return False
