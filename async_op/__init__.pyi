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
    KeyColumnMissing,
    LooksLikeMilliseconds,
    MailboxClosed,
    OperatorClosed,
    OperatorInterrupted,
    RetryAfter,
    SnapshotInsideOutput,
    TimersUnavailable,
    WrongEventLoop,
)
from .functions import (
    AsyncBatchFunction,
    AsyncFunction,
    BlockingFunction,
    CallbackFunction,
    Function,
    ResultFuture,
)
from .operator.operator import AsyncWaitOperator
from .plain import function
from .resilience import AdaptiveConcurrency, Cache, CircuitBreaker, RateLimit, Resilience, SingleFlight
from .retry import ExponentialBackoffRetry, FixedDelayRetry, RetryPolicy
from .runtime import Runtime
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
    "KeyColumnMissing",
    "Latency",
    "LooksLikeMilliseconds",
    "LoopClock",
    "MailboxClosed",
    "OperatorClosed",
    "OperatorInterrupted",
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
    "SnapshotInsideOutput",
    "TimerHandle",
    "TimersUnavailable",
    "Watermark",
    "WrongEventLoop",
    "function",
]
