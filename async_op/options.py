"""The options of an operator, in one place: every entry point takes them and passes them on as one object."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

from async_op.dead_letters import DeadLetter, OnError
from async_op.functions import Function
from async_op.plain_functions import name_of
from async_op.resilience import Resilience
from async_op.retry import RetryPolicy
from keygroups.arguments import check_callable, check_choice, check_integer
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


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorOptions:
    """How an operator calls its function, orders outputs, handles failures and limits calls, wherever it runs.

    `AsyncWaitOperator` takes each option as a parameter of the same name.

    Attributes
    ----------
    function : Function
        What to invoke; `as_function` converts a plain function.
    mode : {"unordered", "ordered", "key_ordered"}
        "ordered": outputs leave in input order. "unordered": outputs leave as calls return, but never pass a watermark.
        "key_ordered": outputs of the same key leave in input order, with one call per key at a time.
    capacity : int
        The most elements in flight, watermarks included; beyond it the input waits. In mode "key_ordered", elements
        that wait for their key are not counted, so a busy key does not hold up the others; they have their own limit.
    timeout : float or None
        The time budget of an element in seconds, from its acceptance and over all attempts, with the wait for earlier
        elements of its key. When it has run out, `function.timeout` is asked for a fallback.
    retry : RetryPolicy or None
        Which outcomes are retried, and when.
    key_by : callable or None
        Returns the key of a value. A function with states needs it; then at most one call per key runs at a time.
    on_error : {"fail", "skip", "dead_letter"}
        What happens to an element that fails for good: it fails the operator, is dropped, or is passed as a
        `DeadLetter` to `dead_letters`.
    dead_letters : callable or None
        Gets each `DeadLetter`.
    hash : {"xxhash64", "flink"}
        The hash that maps a key to its key group.
    resilience : Resilience or None
        Protects the service: a cache, and limits of rate and concurrency.
    state_backend : {"memory"} or DiskStateBackend
        Where keyed state lives while the operator runs.

    Raises
    ------
    ConfigError
        An option is invalid; the message says what to pass instead.
    """

    function: Function[Any, Any]
    mode: Mode = "unordered"
    capacity: int = 100
    timeout: float | None = None
    retry: RetryPolicy | None = None
    key_by: Callable[[Any], Hashable] | None = None
    on_error: OnError = "fail"
    dead_letters: Callable[[DeadLetter], object] | None = None
    hash: str = "xxhash64"
    resilience: Resilience | None = None
    state_backend: StateBackend = "memory"

    def __post_init__(self) -> None:
        check_options(
            self.function,
            mode=self.mode,
            capacity=self.capacity,
            retry=self.retry,
            on_error=self.on_error,
            resilience=self.resilience,
        )
        key_hasher(self.hash)
        if self.key_by is None and (self.states or self.mode == "key_ordered"):
            raise ConfigError("key_by", None, f"{self._needs_keys()}, so its elements need a key")
        if (self.on_error == "dead_letter") != (self.dead_letters is not None):
            raise ConfigError("dead_letters", self.dead_letters, "pass it with on_error='dead_letter', and only then")
        if self.dead_letters is not None:
            check_callable("dead_letters", self.dead_letters, reason="it gets each DeadLetter")
        if self.state_backend != "memory" and not isinstance(self.state_backend, DiskStateBackend):
            raise ConfigError("state_backend", self.state_backend, "use 'memory' or a DiskStateBackend")

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


def check_options(
    function: Function, *, mode: object, capacity: object, retry: object, on_error: object, resilience: object
) -> None:
    """Check the options that all entry points share.

    Raises
    ------
    ConfigError
        An option is invalid; the message says what to pass instead.
    """
    check_choice("mode", mode, get_args(Mode))
    check_choice("on_error", on_error, get_args(OnError))
    check_integer("capacity", capacity, 1, reason="at least one element must fit")
    if retry is not None and not isinstance(retry, RetryPolicy):
        reason = "pass a policy, such as FixedDelayRetry(max_attempts=3, delay=1.0), or None"
        raise ConfigError("retry", retry, reason)
    if resilience is None:
        return
    if not isinstance(resilience, Resilience):
        raise ConfigError("resilience", resilience, "pass its parts by name: Resilience(rate_limit=RateLimit(50))")
    resilience.check_fits(function)
