"""A function on threads that a test lets go on."""

from __future__ import annotations

import threading
from typing import Any

from async_op import BlockingFunction, InvocationContext


class Blocking(BlockingFunction):
    """Blocks until the test lets the value go."""

    max_threads = 4

    def __init__(self, fallback: Any = None) -> None:
        self.started: list[Any] = []
        self.threads: set[int] = set()
        self.running = self.running_max = 0
        self._fallback = fallback
        self._gates: dict[Any, threading.Event] = {}
        self._lock = threading.Lock()

    def gate(self, value: Any) -> threading.Event:
        with self._lock:
            return self._gates.setdefault(value, threading.Event())

    def invoke(self, value: Any, ctx: InvocationContext) -> Any:
        with self._lock:
            self.started.append(value)
            self.threads.add(threading.get_ident())
            self.running += 1
            self.running_max = max(self.running_max, self.running)
        try:
            assert self.gate(value).wait(30)
        finally:
            with self._lock:
                self.running -= 1
        return self.result(value, ctx)

    def result(self, value: Any, ctx: InvocationContext) -> Any:
        return [value]

    async def timeout(self, value: Any, ctx: InvocationContext) -> Any:
        return await super().timeout(value, ctx) if self._fallback is None else self._fallback(value)

    def let_go(self, *values: Any) -> None:
        for value in values:
            self.gate(value).set()
