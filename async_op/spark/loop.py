"""An operator on an event loop of its own thread, beside the thread that Spark feeds with batches."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator
from concurrent.futures import Future
from typing import Any, TypeVar

from async_op.elements import Record, Watermark
from async_op.operator import AsyncWaitOperator
from snapshots import SubtaskRestore, SubtaskSnapshot

_T = TypeVar("_T")

OUTPUTS_AT_ONCE = 1024
"""Outputs that cross from the loop to the feeding thread together."""

OperatorFactory = Callable[[Callable[[Record | Watermark], object]], AsyncWaitOperator]


class OperatorThread:
    """Runs one operator on its own loop. One other thread calls the methods, one at a time.

    Outputs come back in the iterators that `feed` and `finish` return; each must be read to its end.

    Parameters
    ----------
    make_operator : callable
        Called with the operator's `output`.
    restore : SubtaskRestore, optional
        What the operator is opened with.
    """

    def __init__(self, make_operator: OperatorFactory, restore: SubtaskRestore | None = None) -> None:
        self._make_operator = make_operator
        self._restore = restore
        self._outputs: list[Any] = []
        self._ready = queue.SimpleQueue[list[Any] | None]()
        self._loop = _new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="keygroups loop", daemon=True)

    def __enter__(self) -> OperatorThread:
        self._thread.start()
        try:
            self._call(self._open())
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._call(self.operator.close())
        finally:
            self._stop()

    def feed(self, elements: Iterable[tuple[Any, str | None]]) -> Iterator[list[Any]]:
        """Put in elements with their ids; yields outputs as they come until all elements are accepted."""
        return self._outputs_during(self._process(elements))

    def finish(self) -> Iterator[list[Any]]:
        """Wait until nothing is in flight; yields the outputs as they come."""
        return self._outputs_during(self.operator.finish())

    def settle(self, timeout: float | None) -> Iterator[list[Any]]:
        """Wait until nothing is in flight, `timeout` seconds at most; yields the outputs as they come."""
        return self.finish() if timeout is None else self._outputs_during(self._settle(timeout))

    def cut(self) -> tuple[SubtaskSnapshot, list[Any]]:
        """Cut a snapshot; returns with it the outputs that belong to it and were not yielded before."""
        return self._call(self._cut())

    async def _open(self) -> None:
        self.operator = self._make_operator(self._keep)
        await self.operator.open(self._restore)

    async def _process(self, elements: Iterable[tuple[Any, str | None]]) -> None:
        process = self.operator.process
        for value, element_id in elements:
            await process(value, element_id=element_id)

    async def _settle(self, timeout: float) -> None:
        await self.operator.settle(timeout)

    async def _cut(self) -> tuple[SubtaskSnapshot, list[Any]]:
        snapshot = await self.operator.snapshot()
        outputs, self._outputs = self._outputs, []  # calls go on until the operator is closed
        return snapshot, outputs

    def _keep(self, element: Record | Watermark) -> None:
        assert isinstance(element, Record), "no watermark was put in"
        self._outputs.append(element.value)
        if len(self._outputs) >= OUTPUTS_AT_ONCE:
            self._flush()

    def _flush(self) -> None:
        self._ready.put(self._outputs)
        self._outputs = []

    def _outputs_during(self, work: Coroutine[Any, Any, None]) -> Iterator[list[Any]]:
        future = asyncio.run_coroutine_threadsafe(self._then_flush(work), self._loop)
        while (outputs := self._ready.get()) is not None:
            if outputs:
                yield outputs
        future.result()

    async def _then_flush(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        finally:
            self._flush()
            self._ready.put(None)

    def _call(self, work: Coroutine[Any, Any, _T]) -> _T:
        future: Future[_T] = asyncio.run_coroutine_threadsafe(work, self._loop)
        return future.result()

    def _stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


def _new_event_loop() -> asyncio.AbstractEventLoop:
    """Return a uvloop where it is installed: the operator runs about twice as fast on it."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()
