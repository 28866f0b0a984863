"""The options of an operator, in one place: every entry point takes them and passes them on as one object."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable
from dataclasses import dataclass, fields
from functools import wraps
from typing import Any, Literal, Self, TypeAlias, TypedDict, TypeVar, cast, get_args

from async_op.dead_letters import DeadLetter, OnError, check_on_error
from async_op.durations import check_timeout
from async_op.functions.base import Function
from async_op.functions.plain import AnyFunction, as_function, name_of
from async_op.resilience import Resilience
from async_op.retry import RetryPolicy
from keygroups.arguments import Duration, check_callable, check_choice, check_count, check_instance
from keygroups.descriptors import OperatorStateDescriptor, StateDescriptor
from keygroups.errors import ConfigError
from keygroups.hashing import key_hasher
from keygroups.state import DiskStateBackend
from keygroups.state.timers import TIMER_STATES

Mode = Literal["unordered", "ordered", "key_ordered"]

StateBackend: TypeAlias = Literal["memory"] | DiskStateBackend
"""Where keyed state lives while the operator runs; snapshots do not depend on it."""

_WAITING_MIN = 1000
_WAITING_PER_CAPACITY = 10

_Call = TypeVar("_Call", bound=Callable[..., Any])


class CallOptions(TypedDict, total=False):
    """What every entry point takes and passes on, as type checkers see it; `SharedOptions` says what each is for."""

    capacity: int
    timeout: Duration | None
    retry: RetryPolicy | None
    resilience: Resilience | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedOptions:
    """The options that mean the same at every entry point, with their defaults.

    A new one stands here, in `CallOptions`, and in the table of `docs/howto/functions.md`: entry points pass on what
    they do not know.

    Attributes
    ----------
    capacity : int
        The most elements in flight, watermarks included; beyond it the input waits. In mode "key_ordered", elements
        that wait for their key are not counted, so a busy key does not hold up the others; they have their own limit.
    timeout : float, timedelta or None
        The time budget of an element in seconds, from its acceptance and over all attempts, with the wait for earlier
        elements of its key. When it has run out, `function.timeout` is asked for a fallback.
    retry : RetryPolicy or None
        Which outcomes are retried, and when.
    resilience : Resilience or None
        Protects the service: a cache, and limits of rate and concurrency.
    """

    capacity: int = 100
    timeout: Duration | None = None
    retry: RetryPolicy | None = None
    resilience: Resilience | None = None

    def shared(self) -> CallOptions:
        """Return these options as an entry point takes them."""
        found: Any = {field.name: getattr(self, field.name) for field in fields(SharedOptions)}
        options: CallOptions = found
        return options


def takes_call_options(call: _Call) -> _Call:
    """Have an entry point take the options of `SharedOptions`, show them to `help` and editors, and refuse all others.

    Without this check, an option would be refused in the name of an inner class, or taken though it has no effect here.
    """
    signature = inspect.signature(call)
    own = [one for one in signature.parameters.values() if one.kind is not one.VAR_KEYWORD]
    shared = [
        inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=field.type)
        for field in fields(SharedOptions)
    ]
    names = frozenset(one.name for one in (*own, *shared))

    @wraps(call)
    def checked(*arguments: Any, **options: Any) -> Any:
        for name in options.keys() - names:
            raise TypeError(f"{call.__qualname__}() got an unexpected keyword argument {name!r}")
        return call(*arguments, **options)

    checked.__signature__ = signature.replace(parameters=[*own, *shared])  # type: ignore[attr-defined]
    return cast("_Call", checked)


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorOptions(SharedOptions):
    """How an operator calls its function, orders outputs, handles failures and limits calls, wherever it runs.

    Attributes
    ----------
    function : Function
        What to invoke; `as_function` converts a plain function.
    mode : {"unordered", "ordered", "key_ordered"}
        "ordered": outputs leave in input order. "unordered": outputs leave as calls return, but never pass a watermark.
        "key_ordered": outputs of the same key leave in input order, with one call per key at a time.
    timeout : float or None
        As in `SharedOptions`, in seconds.
    key_by : callable or None
        Returns the key of a value. A function with states needs it; then at most one call per key runs at a time.
    on_error : {"fail", "skip", "dead_letter"}
        What happens to an element that fails for good: it fails the operator, is dropped, or is passed as a
        `DeadLetter` to `dead_letters`.
    dead_letters : callable or None
        Gets each `DeadLetter`.
    hash : {"xxhash64", "flink"}
        The hash that maps a key to its key group.
    state_backend : {"memory"} or DiskStateBackend
        Where keyed state lives while the operator runs.

    Raises
    ------
    ConfigError
        An option is invalid; the message says what to pass instead.
    """

    function: Function[Any, Any]
    mode: Mode = "unordered"
    timeout: float | None = None
    key_by: Callable[[Any], Hashable] | None = None
    on_error: OnError = "fail"
    dead_letters: Callable[[DeadLetter], object] | None = None
    hash: str = "xxhash64"
    state_backend: StateBackend = "memory"

    def __post_init__(self) -> None:
        check_choice("mode", self.mode, get_args(Mode))
        check_on_error(self.on_error)
        self._check_shared()
        key_hasher(self.hash)
        if self.key_by is None and (self.states or self.mode == "key_ordered"):
            raise ConfigError("key_by", None, f"{self._needs_keys()}, so its elements need a key")
        if (self.on_error == "dead_letter") != (self.dead_letters is not None):
            raise ConfigError("dead_letters", self.dead_letters, "pass it with on_error='dead_letter', and only then")
        if self.dead_letters is not None:
            check_callable("dead_letters", self.dead_letters, 1, reason="it gets each DeadLetter")
        backend: object = self.state_backend
        if not isinstance(backend, DiskStateBackend) and not (isinstance(backend, str) and backend == "memory"):
            raise ConfigError("state_backend", backend, "use 'memory' or a DiskStateBackend")

    @classmethod
    def of(cls, function: AnyFunction, *, timeout: Duration | None = None, **options: Any) -> Self:
        """Return the options of an entry point, which has got a plain function, and a timeout of either type."""
        return cls(function=as_function(function), timeout=check_timeout("timeout", timeout), **options)

    def _check_shared(self) -> None:
        check_count("capacity", self.capacity, 1, reason="at least one element must fit")
        reason = "pass a policy, such as FixedDelayRetry(max_attempts=3, delay=1.0), or None"
        check_instance("retry", self.retry, (RetryPolicy, type(None)), reason=reason)
        reason = "pass its parts by name: Resilience(rate_limit=RateLimit(50))"
        check_instance("resilience", self.resilience, (Resilience, type(None)), reason=reason)
        if self.resilience is not None:
            self.resilience.check_fits(self.function)

    def _needs_keys(self) -> str:
        reason = "declares keyed state" if self.function.states else "runs in mode 'key_ordered'"
        reason = "defines on_timer" if self.function.has_timers else reason
        return f"{name_of(self.function)} {reason}"

    @property
    def states(self) -> tuple[StateDescriptor, ...]:
        """The keyed states of the function and of its timers."""
        return (*self.function.states, *(TIMER_STATES.values() if self.function.has_timers else ()))

    @property
    def operator_states(self) -> tuple[OperatorStateDescriptor, ...]:
        """The states without a key of the function and of its budgets."""
        budgets = () if self.resilience is None else self.resilience.budgets
        return (*self.function.operator_states, *(budget.state for budget in budgets))

    @property
    def waiting_max(self) -> int:
        """How many elements may wait for their key, in mode "key_ordered", before the input waits."""
        return max(_WAITING_MIN, _WAITING_PER_CAPACITY * self.capacity)
