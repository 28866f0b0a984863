"""Asynchronous operators: many calls to a slow service under way at once, with order, timeouts and keyed state."""

from __future__ import annotations

from async_op.clock import Clock, LoopClock, TimerHandle
from async_op.context import InvocationContext
from async_op.dead_letters import DeadLetter
from async_op.elements import Record, Watermark
from async_op.errors import (
    AsyncTimeoutError,
    ElementFailed,
    IncompleteBatch,
    InvalidFunctionResult,
    MailboxClosed,
    OperatorClosed,
    RetryAfter,
    TimersUnavailable,
)
from async_op.functions import (
    AsyncBatchFunction,
    AsyncFunction,
    BlockingFunction,
    CallbackFunction,
    Function,
    ResultFuture,
    Runtime,
)
from async_op.operator import AsyncWaitOperator
from async_op.retry import ExponentialBackoffRetry, FixedDelayRetry, RetryPolicy
from async_op.statistics import Latency, OperatorStatistics
from async_op.stream import AsyncDataStream
from keygroups.state.timers import Timer

__all__ = [
    "AsyncBatchFunction",
    "AsyncDataStream",
    "AsyncFunction",
    "AsyncTimeoutError",
    "AsyncWaitOperator",
    "BlockingFunction",
    "CallbackFunction",
    "Clock",
    "DeadLetter",
    "ElementFailed",
    "ExponentialBackoffRetry",
    "FixedDelayRetry",
    "Function",
    "IncompleteBatch",
    "InvalidFunctionResult",
    "InvocationContext",
    "Latency",
    "LoopClock",
    "MailboxClosed",
    "OperatorClosed",
    "OperatorStatistics",
    "Record",
    "ResultFuture",
    "RetryAfter",
    "RetryPolicy",
    "Runtime",
    "Timer",
    "TimerHandle",
    "TimersUnavailable",
    "Watermark",
]
