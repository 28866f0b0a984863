"""`ctx`: what a function can learn about its element, and its access to state and timers."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias, overload

from async_op.call_costs import Spending
from async_op.clock import Clock
from async_op.functions.rate_limit_headers import seconds_until_reset
from async_op.in_flight.entries import Entry
from async_op.in_flight.key_assignment import KeyAssignment
from async_op.timers.key_timers import KeyTimers
from async_op.timers.service import TimerService
from keygroups.arguments import Duration
from keygroups.descriptors import (
    AggregatingState,
    ListState,
    MapState,
    OperatorListState,
    OperatorMapState,
    OperatorStateDescriptor,
    ReducingState,
    StateDescriptor,
    ValueState,
)
from keygroups.representation import representation
from keygroups.state import (
    AggregatingHandle,
    Handle,
    KeyedStateBackend,
    ListHandle,
    MapHandle,
    OperatorListHandle,
    OperatorMapHandle,
    OperatorStates,
    ReducingHandle,
    StateAccessOutsideInvocation,
    ValueHandle,
    abandon,
    state_of,
)
from keygroups.state.timers import Timer


@dataclass(frozen=True, slots=True, eq=False)
class Scope:
    """The settings and services that all invocations of an operator share."""

    backend: KeyedStateBackend
    keys: KeyAssignment
    clock: Clock
    timeout: float | None
    operator_states: OperatorStates
    timers: TimerService | None = None
    hold: Callable[[float], None] | None = None


class InvocationContext:
    """One attempt at one element. Only the thread of the event loop may use it, until the invocation ends.

    It has no `__init__`, because one would double the time to create a context.
    """

    __slots__ = ("entry", "handles", "scope", "spending")

    entry: Entry
    handles: Handle | None  # the newest handle of its keyed state
    scope: Scope
    spending: Spending  # set only where costs are counted

    def __repr__(self) -> str:
        facts = {"key": self.key, "timestamp": self.timestamp, "attempt": self.attempt}
        return representation(self, facts | {"idempotency_key": self.idempotency_key})

    @property
    def attempt(self) -> int:
        """The number of this attempt at the element; the first is 1."""
        return self.entry.attempt

    @property
    def key(self) -> Hashable:
        """The element's key; None without `key_by`."""
        return self.entry.key

    @property
    def key_group(self) -> int:
        """The key group of the key; -1 without `key_by`."""
        return self.scope.keys.key_group_of(self.entry)

    @property
    def timestamp(self) -> int | None:
        """The timestamp of the element or timer in milliseconds since the epoch, or None."""
        entry = self.entry
        return entry.value.timestamp if type(entry.value) is Timer else entry.timestamp

    @property
    def idempotency_key(self) -> str:
        """What stays the same over retries, restarts and rescales: a service deduplicates calls by it.

        No other element of any job, step, topic, file or timer has it. It has at most 255 visible ASCII characters.
        """
        return self.scope.keys.idempotency_key_of(self.entry)

    @property
    def timeout(self) -> float | None:
        """The time budget of an element for all its attempts in seconds, or None."""
        return self.scope.timeout

    @property
    def remaining(self) -> float | None:
        """The rest of the element's time budget in seconds, or None without a timeout."""
        deadline = self.entry.deadline
        return None if deadline is None else max(0.0, deadline - self.scope.clock.time())

    @property
    def timers(self) -> KeyTimers:
        """The timers of the element's key.

        Raises
        ------
        TimersUnavailable
            The function does not define `on_timer`.
        """
        return KeyTimers(self, self.scope.timers)

    def spent(self, **amounts: float) -> None:
        """Report what the call has spent, such as ``ctx.spent(tokens=512)``, to the limits and budgets of these units.

        When the call ends, its amounts take the place of its estimated cost; several reports of one call are added up.
        A call that fails is counted, too: with its estimate, unless it has reported something else, such as 0. For a
        batch, the reports of all its elements add up. Where no costs are counted at all, this does nothing.

        Raises
        ------
        UnknownUnit
            Costs are counted, but none in this unit.
        ConfigError
            An amount is no number, or a negative one.
        StateAccessOutsideInvocation
            The call has ended.
        """
        spending: Spending | None = getattr(self, "spending", None)
        if spending is None:
            return
        if spending.has_ended:
            raise StateAccessOutsideInvocation(self.key)
        spending.report(amounts)

    def heed(self, headers: Mapping[str, str], *, maximum: Duration = 60.0) -> None:
        """Begin no call before a limit is reset of which, as the headers of a good answer say, nothing remains.

        It counts at once, for all calls of the subtask, and only if the operator has a `RateLimit`; calls under way go
        on. The headers are those that `seconds_to_wait` reads: `x-ratelimit-remaining-…: 0` with
        `x-ratelimit-reset-…`, and `anthropic-ratelimit-…-remaining: 0` with `…-reset`. As long as something remains of
        every limit, this does nothing. For an answer that is a refusal, raise `RetryAfter`.

        Parameters
        ----------
        headers : mapping of str to str
            The headers of an answer, as any client returns them. Case does not matter.
        maximum : float or timedelta
            The longest wait, whatever the headers say.

        Raises
        ------
        ConfigError
            `maximum` is no duration.
        StateAccessOutsideInvocation
            The call has ended.
        """
        if self.entry.invocation is not self:
            raise StateAccessOutsideInvocation(self.key)
        seconds = seconds_until_reset(headers, maximum)
        if seconds and self.scope.hold is not None:
            self.scope.hold(seconds)

    @overload
    def state(self, descriptor: ValueState) -> ValueHandle: ...
    @overload
    def state(self, descriptor: ListState) -> ListHandle: ...
    @overload
    def state(self, descriptor: MapState) -> MapHandle: ...
    @overload
    def state(self, descriptor: ReducingState) -> ReducingHandle: ...
    @overload
    def state(self, descriptor: AggregatingState) -> AggregatingHandle: ...
    def state(self, descriptor: StateDescriptor) -> Any:
        """Return the handle of a declared state for the element's key.

        Raises
        ------
        StateNotDeclared, WrongStateKind
            The function's `states` do not list it, or list it with another kind.
        StateAccessOutsideInvocation
            The invocation has ended.
        """
        entry = self.entry
        if entry.invocation is not self:
            raise StateAccessOutsideInvocation(entry.key)
        return state_of(self, self.scope.backend, entry, descriptor)

    @overload
    def operator_state(self, descriptor: OperatorListState) -> OperatorListHandle: ...
    @overload
    def operator_state(self, descriptor: OperatorMapState) -> OperatorMapHandle: ...
    def operator_state(self, descriptor: OperatorStateDescriptor) -> Any:
        """Return the handle of a declared state without a key, as `Runtime.operator_state` does.

        Raises
        ------
        OperatorStateNotDeclared, WrongStateKind
            The function's `operator_states` do not list it, or list it with another kind or mode.
        """
        return self.scope.operator_states.handle(descriptor)

    def abandon(self) -> None:
        """End the invocation and discard its writes."""
        self.entry.invocation = None
        abandon(self.handles)


Invoke: TypeAlias = Callable[[Any, InvocationContext], Coroutine[Any, Any, Iterable[Any]]]
"""A call of a function for one element."""
