"""Checks arguments where they are passed: numbers, durations, locations, choices and callables."""

from __future__ import annotations

import functools
import inspect
import math
import numbers
import operator
import os
from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta
from types import CodeType, NoneType
from typing import Any, TypeAlias, TypeGuard, TypeVar, cast

from keygroups.errors import ConfigError

_T = TypeVar("_T")

_PAIR = 2

_NEVER_AWAITED = frozenset({NoneType, bool, int, str, tuple})
"""What callables usually return: a look at the type takes a tenth of the time of `inspect.isawaitable`."""

_BOOLS = frozenset({"bool", "bool_"})
"""Names of the bools of Python and NumPy. NumPy 1 lets its own be an index."""

_NO_NUMBERS = _BOOLS | {"timedelta64"}
"""Names of types whose values are no numbers. NumPy counts its intervals among the integers, whatever their unit."""

Duration: TypeAlias = float | timedelta
"""A length of time: seconds as a number, or a `datetime.timedelta`."""


def check_integer(
    name: str, value: object, minimum: int, maximum: int | None = None, *, reason: str | None = None
) -> int:
    """Return the value as an integer within its bounds; the message has the bounds, and the reason for them if any.

    Raises
    ------
    ConfigError
        The value is not an integer (a bool does not count), or it is out of bounds.
    """
    if type(value).__name__ in _BOOLS:
        raise ConfigError(name, value, _told("must be an integer, not a bool", reason))
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise ConfigError(name, value, _told(f"must be an integer, not {_kind(value)}", reason)) from None
    if number < minimum or (maximum is not None and number > maximum):
        bounds = f"at least {minimum}" if maximum is None else f"between {minimum} and {maximum}"
        raise ConfigError(name, value, _told(f"must be {bounds}", reason))
    return number


def check_count(
    name: str, value: object, minimum: int, maximum: int | None = None, *, reason: str | None = None
) -> None:
    """Check an integer that is kept as it was passed: raise `ConfigError` as `check_integer` does.

    It must be an `int`, because an integer of NumPy is no length, and cannot be written to a manifest.
    """
    number = check_integer(name, value, minimum, maximum, reason=reason)
    if not isinstance(value, int):
        raise ConfigError(name, value, f"pass an int, {number}, not {_kind(value)}")


def check_number(name: str, value: object, *, reason: str) -> float:
    """Return the value as a finite float.

    Raises
    ------
    ConfigError
        The value is not a number (a bool does not count), or it is not finite.
    """
    if not _is_number(value):
        raise ConfigError(name, value, f"pass a number, not {_kind(value)}; {reason}")
    if not math.isfinite(value):
        raise ConfigError(name, value, f"pass a finite number; {reason}")
    return float(value)


def check_duration(name: str, value: object, *, reason: str | None = None) -> float:
    """Return a duration, zero or more, in seconds.

    Raises
    ------
    ConfigError
        The value is neither a number of seconds nor a timedelta, or it is negative or infinite.
    """
    seconds = _seconds(name, value, reason)
    if not 0 <= seconds < math.inf:
        raise ConfigError(name, value, _told("must be a finite number of seconds, zero or more", reason))
    return seconds


def check_positive_duration(name: str, value: object, *, reason: str | None = None) -> float:
    """Return a duration, more than zero, in seconds; raises `ConfigError` as `check_duration` does."""
    seconds = _seconds(name, value, reason)
    if not 0 < seconds < math.inf:
        raise ConfigError(name, value, _told("must be a finite number of seconds, more than zero", reason))
    return seconds


def _seconds(name: str, value: object, reason: str | None) -> float:
    if isinstance(value, timedelta):
        return value.total_seconds()
    if not _is_number(value):
        told = _told(f"pass seconds as a number, or a timedelta, not {_kind(value)}", reason)
        raise ConfigError(name, value, told)
    return float(value)


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, numbers.Real) and type(value).__name__ not in _NO_NUMBERS


def seconds_of(duration: Duration) -> float:
    """Convert a duration that has already been checked to seconds.

    Examples
    --------
    >>> seconds_of(1.5), seconds_of(timedelta(minutes=2))
    (1.5, 120.0)
    """
    return duration.total_seconds() if isinstance(duration, timedelta) else duration


def check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    """Raise `ConfigError` unless a value is one of the choices."""
    if not isinstance(value, str) or value not in choices:  # an array is compared item by item
        raise ConfigError(name, value, f"use one of {', '.join(choices)}")


def check_flag(name: str, value: object) -> None:
    """Raise `ConfigError` unless a value is True or False: text such as "no" would count as true."""
    if not isinstance(value, bool):
        raise ConfigError(name, value, f"pass True or False, not {_kind(value)}")


def check_location(name: str, value: object, *, reason: str) -> str:
    """Return a path or a URI as text.

    Raises
    ------
    ConfigError
        The value is neither text nor a path of text, it is empty, or no file system can hold it.
    """
    text = os.fspath(value) if isinstance(value, str | os.PathLike) else None
    if not isinstance(text, str):
        raise ConfigError(name, value, f"pass text or a path, not {_kind(value)}; {reason}")
    if not text.strip():
        raise ConfigError(name, value, f"it is empty; {reason}")
    try:
        is_a_name = b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        is_a_name = False
    if not is_a_name:
        raise ConfigError(name, value, f"it has half of a surrogate pair or a NUL; {reason}")
    return text


def check_text(name: str, value: object, *, reason: str) -> str:
    """Return text; raises `ConfigError` if the value is empty or no text."""
    if not isinstance(value, str):
        raise ConfigError(name, value, f"pass text, not {_kind(value)}; {reason}")
    if not value:
        raise ConfigError(name, value, f"it is empty; {reason}")
    return value


def check_settings(name: str, value: object) -> dict[str, Any]:
    """Return a copy of a dict of settings by their names; the message shows no value, which may be a secret.

    Raises
    ------
    ConfigError
        It is not a dict whose keys are text.
    """
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise ConfigError(name, hidden(value), "pass a dict with the names of settings as keys")
    return dict(value)


def check_instance(name: str, value: object, kind: type | tuple[type, ...], *, reason: str) -> None:
    """Raise `ConfigError` unless a value is of a type, or of one of several."""
    if not isinstance(value, kind):
        raise ConfigError(name, value, f"is {_kind(value)}; {reason}")


def check_elements(name: str, value: object) -> None:
    """Raise `ConfigError` unless a value is iterated over in elements: Python would take text or a dict apart.

    Examples
    --------
    >>> check_elements("values", "tea")
    Traceback (most recent call last):
    keygroups.errors.ConfigError: values='<str>': pass a list: Python would iterate over the parts of this object
    """
    if type(value) is list or type(value) is tuple:  # quickly, because state is written by calls
        return
    if isinstance(value, str | bytes | bytearray | memoryview | Mapping):
        raise ConfigError(name, hidden(value), "pass a list: Python would iterate over the parts of this object")
    if not isinstance(value, Iterable):
        raise ConfigError(name, hidden(value), "pass a list or another iterable")


def pairs_in(name: str, value: object) -> Iterator[tuple[Any, Any]]:
    """Yield the items of a mapping, or pairs as they are.

    Raises
    ------
    ConfigError
        It is something else, or one of the pairs is none. Text of two characters is none, although Python unpacks it.

    Examples
    --------
    >>> list(pairs_in("entries", {"tea": 2})), list(pairs_in("entries", [("tea", 2)]))
    ([('tea', 2)], [('tea', 2)])
    """
    if isinstance(value, Mapping):
        yield from value.items()
        return
    check_elements(name, value)
    for number, pair in enumerate(cast("Iterable[Any]", value), 1):
        if not isinstance(pair, tuple | list) or len(pair) != _PAIR:
            raise ConfigError(name, hidden(pair), f"pass (key, value) pairs or a dict; item {number} is no pair")
        yield pair[0], pair[1]


def hidden(value: object) -> str | None:
    """Return what stands for a value that a message must not show: its type; None hides nothing."""
    return None if value is None else f"<{type(value).__name__}>"


def check_callable(
    name: str, value: object, arguments: int, *, reason: str, awaited: bool = False, iterated: bool = False
) -> None:
    """Check that a value can be called with so many arguments, and that the caller can use what it returns.

    Raises
    ------
    ConfigError
        The value is not callable, takes other arguments, is a generator function whose result is not iterated over, or
        a coroutine function whose result is not awaited.
    """
    if not callable(value):
        raise ConfigError(name, value, f"pass a callable, not {_kind(value)}; {reason}")
    if not iterated and inspect.isgeneratorfunction(run_by(value)) and not is_coroutine_function(value):
        raise ConfigError(name, value, f"it is called and not iterated over: use `return` instead of `yield`; {reason}")
    if awaited and inspect.isasyncgenfunction(run_by(value)):
        raise ConfigError(name, value, f"it is called and not iterated over: use `await` instead of `yield`; {reason}")
    if not awaited and is_asynchronous(value):
        raise ConfigError(name, value, f"it is called without `await`, so use `def` in place of `async def`; {reason}")
    _check_arguments(name, value, arguments, reason)


def _check_arguments(name: str, call: Any, count: int, reason: str) -> None:
    if (signature := refusing_signature(call, *range(count))) is not None:
        given = "argument" if count == 1 else "arguments"
        told = f"it is called with {count or 'no'} {given}, and is defined with {signature}; {reason}"
        raise ConfigError(name, call, told)


def refusing_signature(call: Any, *arguments: object) -> inspect.Signature | None:
    """Return a callable's signature if that does not accept the arguments, or else None."""
    signature = own_signature(call)
    try:
        if signature is not None:
            signature.bind(*arguments)
    except TypeError:
        return signature
    return None


def own_signature(call: Any) -> inspect.Signature | None:
    """Return what a callable itself takes, or None if it does not tell, as many functions written in C.

    What a decorated function takes is of no account: the wrapper may add arguments, such as a client, or drop some.
    """
    try:
        return inspect.signature(call, follow_wrapped=False)
    except (TypeError, ValueError):
        return None


def is_asynchronous(call: Any) -> bool:
    """Return whether a call returns a coroutine or an async generator; looks through `partial` and `__call__`."""
    return is_coroutine_function(call) or inspect.isasyncgenfunction(run_by(call))


def is_coroutine_function(call: Any) -> bool:
    """Return whether a call returns a coroutine: also of `AsyncMock`, and of what `types.coroutine` has made."""
    run = run_by(call)
    if inspect.iscoroutinefunction(call) or inspect.iscoroutinefunction(run) or _is_marked(_inside_partials(call)):
        return True
    return inspect.isgeneratorfunction(run) and bool(_code_of(run).co_flags & inspect.CO_ITERABLE_COROUTINE)


def _is_marked(call: Any) -> bool:
    """Return whether a callable has the mark of asyncio, which `inspect` does not know: asgiref and async_lru set it.

    From Python 3.12 on they set the mark of `inspect` in its place.
    """
    from asyncio import coroutines  # not loaded by programs without an event loop

    mark = getattr(coroutines, "_is_coroutine", None)
    return mark is not None and getattr(call, "_is_coroutine", None) is mark


def _code_of(run: Any) -> CodeType:
    code: CodeType = getattr(run, "__func__", run).__code__
    return code


def not_awaitable(name: str, returned: _T) -> _T:
    """Return what a callable has returned; call it on what `check_callable` has checked, which sees no deeper.

    A decorator or a lambda may hide a coroutine function, whose work would be left out in silence.

    Raises
    ------
    ConfigError
        It would have to be awaited.

    Examples
    --------
    >>> not_awaitable("sink", None)
    """
    if type(returned) not in _NEVER_AWAITED and inspect.isawaitable(returned):
        if inspect.iscoroutine(returned):
            returned.close()
        reason = "it returns something that is not awaited here: use `def`, and do the work before it returns"
        raise ConfigError(name, f"<{type(returned).__name__}>", reason)
    return returned


def run_by(call: Any) -> Any:
    """Return the function that a call would run: inside partials, or the `__call__` of an instance."""
    call = _inside_partials(call)
    return call if inspect.isroutine(call) else getattr(call, "__call__", call)  # noqa: B004 - the method is inspected


def _inside_partials(call: Any) -> Any:
    while isinstance(call, functools.partial):
        call = call.func
    return call


def hint_to_call(value: object) -> str:
    """Return what a message adds if a function was passed in place of what it returns, such as a generator function."""
    return f"; call the function: {value.__name__}()" if inspect.isroutine(value) else ""


def _told(what: str, reason: str | None) -> str:
    return what if reason is None else f"{what}; {reason}"


def _kind(value: object) -> str:
    if isinstance(value, type):
        return f"the class {value.__name__}"
    return f"a value of type {type(value).__name__}"
