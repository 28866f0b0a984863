"""Context managers made of generators, as of `contextlib`, that any error passes unchanged.

`contextlib` assigns `__traceback__` to an error that leaves its block. An error that is a frozen dataclass, as clients
of some services raise, refuses that, and `FrozenInstanceError` takes its place: a sink was not retried after an error
that `retry_on` names, and the message said nothing of what had happened. This is CPython's issue 99856.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from types import TracebackType
from typing import Any, ParamSpec, TypeVar, cast

_P = ParamSpec("_P")
_T_co = TypeVar("_T_co", covariant=True)

_ENDED: Any = object()


class _Managed(AbstractContextManager[_T_co]):
    """The block of one `with` statement."""

    __slots__ = ("_steps",)

    def __init__(self, steps: Generator[_T_co, None, None]) -> None:
        self._steps = steps

    def __enter__(self) -> _T_co:
        entered: _T_co = next(self._steps, _ENDED)
        return _given(entered)

    def __exit__(
        self, _: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> bool | None:
        if error is None:
            return _is_over(next(self._steps, _ENDED))
        try:
            self._steps.throw(error)
        except StopIteration as ended:
            return ended is not error
        except BaseException as raised:
            if _is_another(raised, error):
                raise
            return _passed_on(error, where)
        return _is_over(None)


class _AsyncManaged(AbstractAsyncContextManager[_T_co]):
    """The block of one `async with` statement."""

    __slots__ = ("_steps",)

    def __init__(self, steps: AsyncGenerator[_T_co, None]) -> None:
        self._steps = steps

    async def __aenter__(self) -> _T_co:
        entered: _T_co = await anext(self._steps, _ENDED)
        return _given(entered)

    async def __aexit__(
        self, _: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> bool | None:
        if error is None:
            return _is_over(await anext(self._steps, _ENDED))
        try:
            await self._steps.athrow(error)
        except StopAsyncIteration as ended:
            return ended is not error
        except BaseException as raised:
            if _is_another(raised, error):
                raise
            return _passed_on(error, where)
        return _is_over(None)


def contextmanager(function: Callable[_P, Iterator[_T_co]]) -> Callable[_P, AbstractContextManager[_T_co]]:
    """Turn a generator with one `yield` into a context manager.

    Examples
    --------
    >>> @contextmanager
    ... def closed():
    ...     yield "open"
    ...     print("closed")
    >>> with closed() as state:
    ...     print(state)
    open
    closed
    """

    @functools.wraps(function)
    def begin(*args: _P.args, **kwargs: _P.kwargs) -> AbstractContextManager[_T_co]:
        return _Managed(cast("Generator[_T_co, None, None]", function(*args, **kwargs)))

    return begin


def asynccontextmanager(
    function: Callable[_P, AsyncIterator[_T_co]],
) -> Callable[_P, AbstractAsyncContextManager[_T_co]]:
    """Turn an async generator with one `yield` into an async context manager."""

    @functools.wraps(function)
    def begin(*args: _P.args, **kwargs: _P.kwargs) -> AbstractAsyncContextManager[_T_co]:
        return _AsyncManaged(cast("AsyncGenerator[_T_co, None]", function(*args, **kwargs)))

    return begin


def _given(entered: _T_co) -> _T_co:  # type: ignore[misc]  # it is passed through
    if entered is _ENDED:
        raise RuntimeError("the generator did not yield")
    return entered


def _is_over(step: object) -> bool:
    """Return that no error is swallowed; a generator that has yielded once more is an error."""
    if step is not _ENDED:
        raise RuntimeError("the generator did not stop")
    return False


def _is_another(raised: BaseException, error: BaseException) -> bool:
    """Return whether a generator has raised something else than what was thrown into it."""
    # A generator turns a StopIteration that leaves it into a RuntimeError.
    is_turned = isinstance(error, StopIteration | StopAsyncIteration) and isinstance(raised, RuntimeError)
    return raised is not error and not (is_turned and raised.__cause__ is error)


def _passed_on(error: BaseException, where: TracebackType | None) -> bool:
    """Let an error go on without the frames of the generator."""
    BaseException.with_traceback(error, where)
    return False
