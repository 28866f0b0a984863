"""Keeps calls apart: each has its own context variables, and its own copy of its element."""

from __future__ import annotations

import asyncio
import decimal
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context, copy_context
from itertools import chain
from types import coroutine
from typing import Any, ParamSpec, TypeVar

from async_op.functions.context import InvocationContext, Invoke
from async_op.threads.decimal_context import with_own_decimals
from keygroups.state.detached import IMMUTABLE, are_immutable, have_types, own_copy
from keygroups.state.timers import Timer

_P = ParamSpec("_P")
_T = TypeVar("_T")

UNCHANGING = IMMUTABLE | {Timer}
"""Types of elements that no function can change, so that calls may share them."""

_DICT = frozenset({dict})


class CallContexts:
    """The context variables that the calls of an operator see. Only the thread of the event loop may call it.

    The operator has a context of its own, a copy of the context in which it was opened. `open` and `close` of the
    function run there, in one task. Each call gets a copy of it as it was when `open` had returned, so a call sees what
    the program and `open` have set, and no other call sees what it sets itself.

    Attributes
    ----------
    home : Context
        Where `open` and `close` run.
    base : Context
        What calls get copies of. Nothing runs in it.
    """

    __slots__ = ("_decimals", "base", "home")

    def __init__(self) -> None:
        self.home, _ = with_own_decimals(copy_context())
        self.base: Context = self.home.copy()
        self._decimals: decimal.Context | None = None

    def opened(self) -> None:
        """Let calls see what the function's `open` has set."""
        self.base, self._decimals = with_own_decimals(self.home)

    @property
    def are_costly(self) -> bool:
        """Whether calls need more than a copy of `base`, because a decimal context would be shared by its copies."""
        return self._decimals is not None

    def fresh(self) -> Context:
        """Return a context for one call."""
        context = self.base.copy()
        if self._decimals is not None:
            context.run(decimal.setcontext, self._decimals.copy())
        return context

    def run(self, function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Call a function of the user in a context of its own."""
        return self.fresh().run(function, *args, **kwargs)

    async def separately(self, awaited: Coroutine[Any, Any, _T]) -> _T:
        """Await a coroutine of the user in a context of its own."""
        return await in_context(self.fresh(), awaited)

    def separate(self, invoke: Invoke) -> Invoke:
        """Return a coroutine function whose calls run in contexts of their own, whatever task awaits them."""

        def begin(value: Any, ctx: InvocationContext) -> Coroutine[Any, Any, Any]:
            context = self.fresh()
            return in_context(context, context.run(invoke, value, ctx))

        return begin

    def start(self, coroutine: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Run a coroutine in a task whose context is not the caller's, which may be a call."""
        # Not through the loop's task factory: an eager factory would run the task before its owner knows about it.
        return asyncio.Task(coroutine, loop=asyncio.get_running_loop(), name=name, context=self.fresh())


@coroutine
def in_context(context: Context, awaited: Coroutine[Any, Any, _T]) -> Generator[Any, Any, _T]:
    """Await a coroutine each step of which runs in another context, but in the same task.

    A task of its own would cost several times as much.
    """
    run = context.run
    step: Callable[[Any], Any] = awaited.send
    given: Any = None
    try:
        while True:
            waited_for = run(step, given)
            try:
                given = yield waited_for
                step = awaited.send
            except BaseException as error:  # noqa: BLE001 - it belongs to what is awaited
                step, given = awaited.throw, error
    except StopIteration as ended:
        result: _T = ended.value
        return result
    finally:
        given = None  # an error refers to this frame


def are_different(context: Context, other: Context) -> bool:
    """Return whether two contexts have different variables, or some that cannot be compared."""
    try:
        return context != other
    except Exception:  # noqa: BLE001 - whatever the value of a variable raises
        return True


def values_of_their_own(values: list[Any]) -> list[Any]:
    """Return the values of a batch in such a form that the function may change them."""
    if have_types(values, UNCHANGING):
        return values
    if have_types(values, _DICT) and are_immutable(map(type, chain.from_iterable(map(dict.values, values)))):
        return list(map(dict.copy, values))  # the usual case, without a Python loop
    return [value if type(value) in UNCHANGING else own_copy(value) for value in values]
