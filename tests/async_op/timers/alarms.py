"""A function whose timers do what values say."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from async_op import InvocationContext
from keygroups import ValueState
from tests.async_op.kit import Service

NOW = 1_000_000
"""Where a `ManualClock` starts, in milliseconds."""

FIRED = ValueState("fired", default=0)


class Alarms(Service):
    """Does to timers what values say: a key, and a command with a timestamp; calls for values beginning with "slow"."""

    states = (FIRED,)

    def __init__(self, *, waits: bool = False, **options: Any) -> None:
        super().__init__(**options)
        self.fired: list[tuple[Any, int, str]] = []
        self.waits = waits
        self.again: dict[int, tuple[int, bool]] = {}

    async def async_invoke(self, value: Any, ctx: InvocationContext) -> Iterable[Any]:
        _, command, timestamp = value
        if command.startswith("slow"):
            await super().async_invoke(value, ctx)
        for word, do in (("register", ctx.timers.register), ("delete", ctx.timers.delete)):
            if word in command:
                do(timestamp, event_time="event" in command)
        return []

    async def on_timer(self, timestamp: int, ctx: InvocationContext) -> Iterable[Any]:
        self.fired.append((ctx.key, timestamp, ctx.idempotency_key))
        ctx.state(FIRED).update(ctx.state(FIRED).value() + 1)
        if timestamp in self.again:
            ctx.timers.register(*self.again[timestamp])
        if self.waits:
            await super().async_invoke((ctx.key, timestamp), ctx)
        assert ctx.timestamp == timestamp
        return [f"{ctx.key}@{timestamp}"]

    @property
    def times(self) -> list[tuple[Any, int]]:
        return [(key, timestamp) for key, timestamp, _ in self.fired]


def by_key(value: Any) -> Any:
    return value[0]
