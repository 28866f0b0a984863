"""Asynchronous operators: many calls to a slow service under way at once, with order, timeouts and keyed state."""

from __future__ import annotations

from async_op.clock import Clock, LoopClock, TimerHandle
from async_op.context import InvocationContext
from async_op.elements import Record, Watermark
from async_op.errors import AsyncTimeoutError, ElementFailed, InvalidFunctionResult, OperatorClosed
from async_op.functions import AsyncFunction, Runtime
from async_op.operator import AsyncWaitOperator
from async_op.statistics import OperatorStatistics
from async_op.stream import AsyncDataStream

__all__ = [
    "AsyncDataStream",
    "AsyncFunction",
    "AsyncTimeoutError",
    "AsyncWaitOperator",
    "Clock",
    "ElementFailed",
    "InvalidFunctionResult",
    "InvocationContext",
    "LoopClock",
    "OperatorClosed",
    "OperatorStatistics",
    "Record",
    "Runtime",
    "TimerHandle",
    "Watermark",
]
