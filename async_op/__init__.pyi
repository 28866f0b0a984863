"""Asynchronous operators: many calls to a slow service under way at once, with order, timeouts and keyed state."""

from .clock import Clock, LoopClock, TimerHandle
from .context import InvocationContext
from .dead_letters import DeadLetter
from .elements import Record, Watermark
from .errors import (
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
from .functions import (
    AsyncBatchFunction,
    AsyncFunction,
    BlockingFunction,
    CallbackFunction,
    Function,
    ResultFuture,
    Runtime,
)
from .operator import AsyncWaitOperator
from .resilience import AdaptiveConcurrency, Cache, CircuitBreaker, RateLimit, Resilience, SingleFlight
from .retry import ExponentialBackoffRetry, FixedDelayRetry, RetryPolicy
from .statistics import Latency, OperatorStatistics, ResilienceStatistics
from .stream import AsyncDataStream

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
