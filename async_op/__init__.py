"""Asynchronous operators: many calls to a slow service under way at once, with order, timeouts and keyed state."""

from __future__ import annotations

import logging

from async_op.clock import Clock, LoopClock, TimerHandle
from async_op.context import InvocationContext
from async_op.dead_letters import DeadLetter
from async_op.elements import Record, Watermark
from async_op.errors import (
    AsyncTimeoutError,
    CircuitOpen,
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
from async_op.resilience import AdaptiveConcurrency, Cache, CircuitBreaker, RateLimit, Resilience, SingleFlight
from async_op.retry import ExponentialBackoffRetry, FixedDelayRetry, RetryPolicy
from async_op.statistics import Latency, OperatorStatistics, ResilienceStatistics
from async_op.stream import AsyncDataStream

__all__ = [
    "AdaptiveConcurrency",
    "AsyncBatchFunction",
    "AsyncDataStream",
    "AsyncFunction",
    "AsyncTimeoutError",
    "AsyncWaitOperator",
    "BlockingFunction",
    "Cache",
    "CallbackFunction",
    "CircuitBreaker",
    "CircuitOpen",
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
    "RateLimit",
    "Record",
    "Resilience",
    "ResilienceStatistics",
    "ResultFuture",
    "RetryAfter",
    "RetryPolicy",
    "Runtime",
    "SingleFlight",
    "TimerHandle",
    "TimersUnavailable",
    "Watermark",
]

logging.getLogger(__name__).addHandler(logging.NullHandler())  # who wants to read it says so
