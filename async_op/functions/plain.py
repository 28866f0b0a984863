"""Adapts plain functions (a returned value is the one output), and checks every function before anything runs."""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from types import GeneratorType
from typing import Any, Concatenate, Generic, Literal, TypeAlias, TypeVar, get_args, overload
from weakref import WeakSet

from async_op.durations import check_delay
from async_op.functions.base import AsyncBatchFunction, AsyncFunction, BlockingFunction, CallbackFunction, Function
from async_op.functions.context import InvocationContext
from keygroups.arguments import (
    check_choice,
    check_count,
    is_asynchronous,
    is_coroutine_function,
    own_signature,
    refusing_signature,
    run_by,
)
from keygroups.descriptors import OperatorStateDescriptor, StateDescriptor
from keygroups.errors import ConfigError
from keygroups.state.timers import TIMER_STATES

On = Literal["auto", "loop", "thread"]

PlainFunction: TypeAlias = Callable[[Any], Any] | Callable[[Any, InvocationContext], Any]
"""A function of an element and, if its second parameter is named `ctx`, of the `InvocationContext`."""

AnyFunction: TypeAlias = Function[Any, Any] | PlainFunction
"""What every entry point accepts: a function object or a plain function."""

_In = TypeVar("_In")
_Out = TypeVar("_Out")


class Plain(Generic[_In, _Out]):
    """A plain function with its settings; calling it calls the plain function."""

    def __init__(
        self,
        call: PlainFunction,
        states: tuple[StateDescriptor, ...] = (),
        operator_states: tuple[OperatorStateDescriptor, ...] = (),
    ) -> None:
        functools.update_wrapper(self, call, updated=())
        self.__name__: str = _name_of(call)
        self.states = states
        self.operator_states = operator_states
        self._call: Callable[..., Any] = call
        self._takes_ctx = _takes_ctx(call)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function itself."""
        return self._call(*args, **kwargs)

    def _begin(self, value: _In, ctx: InvocationContext) -> Any:
        return self._call(value, ctx) if self._takes_ctx else self._call(value)


class CoroutineOutput(Plain[_In, _Out], AsyncFunction[_In, _Out]):
    """Adapts a coroutine function."""

    async def async_invoke(self, value: _In, ctx: InvocationContext) -> list[_Out]:
        """Return the one output in a list."""
        return [await self._begin(value, ctx)]


class AsyncGeneratorOutputs(Plain[_In, _Out], AsyncFunction[_In, _Out]):
    """Adapts an async generator."""

    async def async_invoke(self, value: _In, ctx: InvocationContext) -> list[_Out]:
        """Return all yielded values once the generator has finished."""
        return [output async for output in self._begin(value, ctx)]


class LoopOutputs(Plain[_In, _Out], AsyncFunction[_In, _Out]):
    """Adapts a function that does not block; runs it on the event loop."""

    async def async_invoke(self, value: _In, ctx: InvocationContext) -> list[_Out]:
        """Return the one output, or all yielded values."""
        return _outputs_of(self._begin(value, ctx))


class ThreadOutputs(Plain[_In, _Out], BlockingFunction[_In, _Out]):
    """Adapts a function that may block; runs it on a thread pool."""

    def invoke(self, value: _In, ctx: InvocationContext) -> list[_Out]:
        """Return the one output, or all yielded values."""
        return _outputs_of(self._begin(value, ctx))


_Synchronous: TypeAlias = ThreadOutputs[_In, _Out] | LoopOutputs[_In, _Out]

_PlainKind: TypeAlias = (
    CoroutineOutput[Any, Any] | AsyncGeneratorOutputs[Any, Any] | LoopOutputs[Any, Any] | ThreadOutputs[Any, Any]
)


class _Decorator:
    """Adapts plain functions with the settings that were passed to `function`."""

    def __init__(
        self,
        states: tuple[StateDescriptor, ...],
        operator_states: tuple[OperatorStateDescriptor, ...],
        max_threads: int | None,
        on: On,
    ) -> None:
        self._states = states
        self._operator_states = operator_states
        self._max_threads = max_threads
        self._on = on

    # The last overload would take every function; the first one that fits counts.
    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, call: Callable[Concatenate[_In, ...], AsyncIterator[_Out]]
    ) -> AsyncGeneratorOutputs[_In, _Out]: ...
    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, call: Callable[Concatenate[_In, ...], Coroutine[Any, Any, _Out]]
    ) -> CoroutineOutput[_In, _Out]: ...
    @overload
    def __call__(self, call: Callable[Concatenate[_In, ...], Iterator[_Out]]) -> _Synchronous[_In, _Out]: ...
    @overload
    def __call__(self, call: Callable[Concatenate[_In, ...], _Out]) -> _Synchronous[_In, _Out]: ...
    def __call__(self, call: PlainFunction) -> Function[Any, Any]:
        return _plain(call, self._states, self._operator_states, self._max_threads, self._on)


def function(
    misplaced: None = None,
    /,
    *,
    states: tuple[StateDescriptor, ...] = (),
    operator_states: tuple[OperatorStateDescriptor, ...] = (),
    max_threads: int | None = None,
    on: On = "auto",
) -> _Decorator:
    """Give a plain function state, or choose where it runs. If you need neither, pass the function undecorated.

    The return value is the one output, even if it is a list, a tuple or None. Yielded values are the outputs; they
    leave together when the generator ends. A second parameter named `ctx` gets the `InvocationContext`.

    Parameters
    ----------
    states : tuple of descriptors
        The keyed states that the function uses, through `ctx.state`.
    operator_states : tuple of descriptors
        The states without a key that the function uses, through `ctx.operator_state`.
    max_threads : int, optional
        The most calls that run at once, for a function that runs on threads; 32 by default.
    on : {"auto", "loop", "thread"}
        Where the function runs. "auto": coroutine functions and async generators on the event loop, all others on
        threads. "loop": on the event loop, so it must not block. "thread": on threads.

    Returns
    -------
    decorator
        It returns a function for the entry points that can still be called directly.

    Raises
    ------
    ConfigError
        An argument is invalid or does not fit the function.

    Examples
    --------
    >>> from keygroups import ValueState
    >>> COUNT = ValueState("count", default=0)
    >>> @function(states=(COUNT,))
    ... async def numbered(value, ctx):
    ...     count = ctx.state(COUNT)
    ...     count.update(count.value() + 1)
    ...     return count.value(), value
    >>> numbered.states
    (ValueState(name='count', type=None, default=0, ttl=None),)
    """
    if misplaced is not None:
        raise ConfigError("function", misplaced, "write `@function()`, with parentheses, or pass the function as it is")
    check_states(states)
    check_operator_states(operator_states, states)
    check_choice("on", on, get_args(On))
    return _Decorator(states, operator_states, max_threads, on)


def as_function(given: AnyFunction) -> Function[Any, Any]:
    """Return the `Function` for what an entry point was given: the object itself, or an adapter of a plain function.

    Raises
    ------
    ConfigError
        It is not a function, or it is invalid.
    """
    if not isinstance(given, Function):
        given = _plain(given, (), (), None, "auto")
    check_function(given)
    return given


def name_of(function: Function[Any, Any]) -> str:
    """Return the name of a function in metrics and messages."""
    return str(getattr(function, "__name__", type(function).__name__))


def _plain(
    call: PlainFunction,
    states: tuple[StateDescriptor, ...],
    operator_states: tuple[OperatorStateDescriptor, ...],
    max_threads: int | None,
    on: On,
) -> Function[Any, Any]:
    _check_call(call)
    kind = _kind_of(call, on)
    if max_threads is not None and kind is not ThreadOutputs:
        raise ConfigError("max_threads", max_threads, "the event loop has one thread: leave it out")
    made = kind(call, states, operator_states)
    if isinstance(made, ThreadOutputs) and max_threads is not None:
        made.max_threads = max_threads
    check_function(made)
    return made


def _kind_of(call: PlainFunction, on: On) -> type[_PlainKind]:
    if on == "thread" and is_asynchronous(call):
        raise ConfigError("on", on, "a coroutine function runs on the event loop: leave it out")
    if inspect.isasyncgenfunction(run_by(call)):
        return AsyncGeneratorOutputs
    if is_coroutine_function(call):
        return CoroutineOutput
    return LoopOutputs if on == "loop" else ThreadOutputs


def _check_call(call: object) -> None:
    if isinstance(call, type):
        raise ConfigError("function", call, f"pass an instance, {call.__name__}(), not the class")
    if inspect.iscoroutine(call) or inspect.isasyncgen(call):
        name = call.__name__
        if inspect.iscoroutine(call):
            call.close()
        raise ConfigError("function", call, f"pass the function, {name}, not a call of it")
    if not callable(call):
        raise ConfigError("function", call, "pass a function, or an instance of a subclass of AsyncFunction")
    arguments = ("value", "ctx") if _takes_ctx(call) else ("value",)
    check_takes(call, _name_of(call), *arguments, hint="; a second parameter that gets the context is named `ctx`")


def _name_of(call: Any) -> str:
    named = call.func if isinstance(call, functools.partial) else call
    return str(getattr(named, "__name__", type(named).__name__))


def _takes_ctx(call: Any) -> bool:
    """Tell whether the second parameter is named `ctx`: of the function, or of what it hands all its arguments to."""
    second = 1
    while isinstance(call, functools.partial):
        if "ctx" in call.keywords:
            return False
        second += len(call.args)
        call = call.func
    if not inspect.isroutine(call):
        call = call.__call__
    if inspect.ismethod(call):
        call = call.__func__
        second += 1
    taking = inspect.unwrap(call, stop=lambda wrapper: not _hands_on(wrapper, second))
    return [one.name for one in _parameters(taking)[second : second + 1]] == ["ctx"]


def _hands_on(wrapper: Any, place: int) -> bool:
    """Tell whether a wrapper takes what stands at a place as one of `*args`."""
    return any(one.kind is one.VAR_POSITIONAL for one in _parameters(wrapper)[: place + 1])


def _parameters(call: Any) -> list[inspect.Parameter]:
    signature = own_signature(call)
    return [] if signature is None else list(signature.parameters.values())


def _outputs_of(result: Any) -> list[Any]:
    return list(result) if isinstance(result, GeneratorType) else [result]


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
        check_count("max_batch_size", function.max_batch_size, 1)
        check_delay("max_batch_delay", function.max_batch_delay)
        if function.arrow and function.knows_outputs:
            raise ConfigError("function", function, "each record batch needs its call: it cannot define known_outputs")
    if isinstance(function, BlockingFunction):
        check_count("max_threads", function.max_threads, 1, reason="at least one thread must do the work")


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
    if (signature := refusing_signature(call, *arguments)) is not None:
        raise ConfigError("function", name, f"define it with ({', '.join(arguments)}); it has {signature}{hint}")


_METHODS = frozenset(
    name
    for kind in (AsyncFunction, AsyncBatchFunction, BlockingFunction, CallbackFunction)
    for name in dir(kind)
    if not name.startswith("_") and inspect.isfunction(getattr(kind, name))
)

_checked: WeakSet[type] = WeakSet()
"""Classes whose methods are right: to look at all signatures would take a third of the time of a short stream."""


def _check_methods(function: Function) -> None:
    has_own = not _METHODS.isdisjoint(getattr(function, "__dict__", ()))  # such as a mock of one method
    if type(function) not in _checked or has_own:
        _check_each_method(function)
    if not has_own:
        _checked.add(type(function))


def _check_each_method(function: Function) -> None:
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
        raise ConfigError("function", name, "collect the outputs in a list and return it, instead of `yield`")
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
