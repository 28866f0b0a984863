"""Checks a user's function before anything runs, so that mistakes fail early."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any, get_args

from async_op.durations import check_delay
from async_op.functions import AsyncBatchFunction, AsyncFunction, BlockingFunction, CallbackFunction, Function
from keygroups.arguments import check_integer, is_asynchronous
from keygroups.descriptors import OperatorStateDescriptor, StateDescriptor
from keygroups.errors import ConfigError
from keygroups.state.timers import TIMER_STATES


def check_function(function: Function) -> None:
    """Check the methods, states and sizes of a function.

    Raises
    ------
    ConfigError
        One of them is invalid.
    """
    if not isinstance(function, AsyncFunction | BlockingFunction | CallbackFunction):
        raise ConfigError("function", function, "subclass AsyncFunction, BlockingFunction or CallbackFunction")
    _check_methods(function)
    check_states(function.states, TIMER_STATES if function.has_timers else ())
    check_operator_states(function.operator_states, function.states, TIMER_STATES if function.has_timers else ())
    if isinstance(function, AsyncBatchFunction):
        reason = "max_batch_size is at least 1, max_batch_delay at least 0"
        check_integer("max_batch_size", function.max_batch_size, 1, reason=reason)
        check_delay("max_batch_delay", function.max_batch_delay, reason=reason)
        if function.arrow and function.knows_outputs:
            raise ConfigError("function", function, "each record batch needs its call: it cannot define known_outputs")
    if isinstance(function, BlockingFunction):
        check_integer("max_threads", function.max_threads, 1, reason="at least one thread must do the work")


def check_states(states: object, taken: object = ()) -> None:
    """Check that `states` is a tuple or list of descriptors with distinct names.

    Raises
    ------
    ConfigError
        It is something else, or a name is among `taken`, the names already in use.
    """
    if isinstance(states, get_args(StateDescriptor)):
        raise ConfigError("states", states, "write `states = (descriptor,)`, with a comma, for a single one")
    if not isinstance(states, tuple | list):
        raise ConfigError("states", states, "pass a tuple of descriptors, such as (ValueState('count'),)")
    names = set(taken)  # type: ignore[call-overload]
    for state in states:
        if not isinstance(state, get_args(StateDescriptor)):
            raise ConfigError("states", state, "pass descriptors, such as ValueState('count')")
        if state.name in names:
            raise ConfigError("states", state.name, "two states have this name; each needs its own")
        names.add(state.name)


def check_operator_states(
    operator_states: object, states: Iterable[StateDescriptor] = (), taken: Iterable[str] = ()
) -> None:
    """Check that `operator_states` is a tuple or list of descriptors, each with a name that no other state has.

    Keyed states count as well, because commands name a state by its name alone.

    Raises
    ------
    ConfigError
        It is something else, or a name belongs to one of `states` or among `taken`.
    """
    kinds = get_args(OperatorStateDescriptor)
    if isinstance(operator_states, kinds):
        reason = "write `operator_states = (descriptor,)`, with a comma, for a single one"
        raise ConfigError("operator_states", operator_states, reason)
    if not isinstance(operator_states, tuple | list):
        reason = "pass a tuple of descriptors, such as (OperatorListState('offsets'),)"
        raise ConfigError("operator_states", operator_states, reason)
    names = {*(state.name for state in states), *taken}
    for state in operator_states:
        if not isinstance(state, kinds):
            raise ConfigError("operator_states", state, "pass descriptors, such as OperatorListState('offsets')")
        if state.name in names:
            raise ConfigError("operator_states", state.name, "another state has this name; each needs its own")
        names.add(state.name)


def check_takes(call: Callable[..., Any], name: str, *arguments: str, hint: str = "") -> None:
    """Check that a callable accepts the given arguments.

    Raises
    ------
    ConfigError
        Its signature does not.
    """
    try:
        signature = inspect.signature(call)
    except ValueError:
        return  # some builtins have no signature
    try:
        signature.bind(*arguments)
    except TypeError:
        reason = f"define it with ({', '.join(arguments)}); it has {signature}{hint}"
        raise ConfigError("function", name, reason) from None


def _check_methods(function: Function) -> None:
    _check_coroutine(function, "open", "runtime")
    _check_coroutine(function, "timeout", "value", "ctx")
    _check_coroutine(function, "on_timer", "timestamp", "ctx")
    _check_coroutine(function, "snapshot_complete", "version")
    _check_synchronous(function, "known_outputs", "value", "ctx")
    _check_synchronous(function, "snapshot_state", "descriptor")
    _check_coroutine(function, "close")
    if isinstance(function, AsyncBatchFunction):
        _check_coroutine(function, "async_invoke_batch", "values", "ctxs")
    elif isinstance(function, AsyncFunction):
        _check_coroutine(function, "async_invoke", "value", "ctx")
    elif isinstance(function, BlockingFunction):
        _check_synchronous(function, "invoke", "value", "ctx")
    else:
        _check_synchronous(function, "async_invoke", "value", "result_future")


def _check_coroutine(function: Function, method: str, *arguments: str) -> None:
    name, bound = f"{type(function).__name__}.{method}", getattr(function, method)
    call = inspect.unwrap(bound)  # a decorator may hide what it decorates
    if inspect.isasyncgenfunction(call) or inspect.isgeneratorfunction(call):
        raise ConfigError("function", name, "collect the outputs in a list and return it, in place of `yield`")
    # Other callables may return an awaitable; only calling them shows whether they do.
    if inspect.isroutine(call) and not inspect.iscoroutinefunction(call):
        instead = ", or subclass BlockingFunction if it blocks" if method == "async_invoke" else ""
        raise ConfigError("function", name, f"define it with `async def`{instead}")
    check_takes(bound, name, *arguments)


def _check_synchronous(function: Function, method: str, *arguments: str) -> None:
    name, bound = f"{type(function).__name__}.{method}", getattr(function, method)
    if is_asynchronous(bound):
        instead = "" if method in ("known_outputs", "snapshot_state") else ", or subclass AsyncFunction for `async def`"
        raise ConfigError("function", name, f"define it with `def`{instead}")
    check_takes(bound, name, *arguments)
