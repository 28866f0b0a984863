"""Asynchronous operators: many calls to a slow service under way at once, with order, timeouts and keyed state."""

from .call_costs import BudgetSpent, CallRefused, CostAboveLimit, UnknownUnit
from .clock import Clock, LoopClock, TimerHandle
from .connectors.errors import ConnectorInterrupted
from .dead_letters import DeadLetter, LetterWithoutValue, letter_key, letter_value
from .elements import Record, Watermark
from .epochs.adoption import RepartitionUndone
from .epochs.restarts import RestartPolicy
from .epochs.retention import Retention
from .errors import (
    AsyncTimeoutError,
    BlocksEventLoop,
    CircuitOpen,
    ElementFailed,
    IncompleteAnswer,
    IncompleteBatch,
    InvalidFunctionResult,
    ItemsNotGiven,
    KeyColumnMissing,
    LooksLikeMilliseconds,
    OperatorClosed,
    OperatorInterrupted,
    RetryAfter,
    SharedOutsideOpen,
    SnapshotInsideOutput,
    TimersUnavailable,
    TooManySubmitted,
    UnusableTimestamp,
    ValueRefused,
    WrongEventLoop,
)
from .explanation import Explanation, Finding
from .functions.base import (
    AsyncBatchFunction,
    AsyncFunction,
    BlockingFunction,
    CallbackFunction,
    Function,
    ResultFuture,
)
from .functions.context import InvocationContext
from .functions.plain import function
from .functions.rate_limit_headers import seconds_to_wait
from .functions.runtime import Runtime
from .functions.shared_resources import Shared, shared
from .functions.streamed_answers import joined_answer
from .job.errors import (
    ConnectorBroken,
    ConnectorCancelled,
    DeadLettersUnclaimed,
    JobAlreadyRunning,
    JobInsideEventLoop,
    JobNotRunning,
    StreamAlreadyRead,
)
from .job.job import Job
from .job.progress import JobProgress
from .job.step import Step
from .operator.operator import AsyncWaitOperator
from .resilience import AdaptiveConcurrency, Budget, Cache, CircuitBreaker, RateLimit, Resilience, SingleFlight
from .retry import ExponentialBackoffRetry, FixedDelayRetry, RetryPolicy
from .serving.http import AddressUnavailable
from .statistics import Latency, OperatorStatistics, ResilienceStatistics
from .stream.stream import AsyncDataStream
from .threads.wait_strategies import ParkWait, ProgressiveWait, WaitSituation, WaitStrategies, WaitStrategy

__all__ = [
    "AdaptiveConcurrency",
    "AddressUnavailable",
    "AsyncBatchFunction",
    "AsyncDataStream",
    "AsyncFunction",
    "AsyncTimeoutError",
    "AsyncWaitOperator",
    "BlockingFunction",
    "BlocksEventLoop",
    "Budget",
    "BudgetSpent",
    "Cache",
    "CallRefused",
    "CallbackFunction",
    "CircuitBreaker",
    "CircuitOpen",
    "Clock",
    "ConnectorBroken",
    "ConnectorCancelled",
    "ConnectorInterrupted",
    "CostAboveLimit",
    "DeadLetter",
    "DeadLettersUnclaimed",
    "ElementFailed",
    "Explanation",
    "ExponentialBackoffRetry",
    "Finding",
    "FixedDelayRetry",
    "Function",
    "IncompleteAnswer",
    "IncompleteBatch",
    "InvalidFunctionResult",
    "InvocationContext",
    "ItemsNotGiven",
    "Job",
    "JobAlreadyRunning",
    "JobInsideEventLoop",
    "JobNotRunning",
    "JobProgress",
    "KeyColumnMissing",
    "Latency",
    "LetterWithoutValue",
    "LooksLikeMilliseconds",
    "LoopClock",
    "OperatorClosed",
    "OperatorInterrupted",
    "OperatorStatistics",
    "ParkWait",
    "ProgressiveWait",
    "RateLimit",
    "Record",
    "RepartitionUndone",
    "Resilience",
    "ResilienceStatistics",
    "RestartPolicy",
    "ResultFuture",
    "Retention",
    "RetryAfter",
    "RetryPolicy",
    "Runtime",
    "Shared",
    "SharedOutsideOpen",
    "SingleFlight",
    "SnapshotInsideOutput",
    "Step",
    "StreamAlreadyRead",
    "TimerHandle",
    "TimersUnavailable",
    "TooManySubmitted",
    "UnknownUnit",
    "UnusableTimestamp",
    "ValueRefused",
    "WaitSituation",
    "WaitStrategies",
    "WaitStrategy",
    "Watermark",
    "WrongEventLoop",
    "function",
    "joined_answer",
    "letter_key",
    "letter_value",
    "seconds_to_wait",
    "shared",
]
