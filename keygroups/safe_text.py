"""Text from outside (an error's message, a value's `repr`) as text that can be printed, encoded and stored anywhere.

An error of a user's function may hold half a surrogate pair, a NUL character or a megabyte, and its `str()` may itself
raise. If such a text reached a log, a dead letter or a manifest as it is, one bad element would stop all others.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import dropwhile
from pathlib import Path
from typing import Any

TEXT_MAX = 16_384
"""The most characters of an error's message that are kept: more than any log line or column of a table needs."""

_SHOWN_MAX = 5
"""How many errors of an exception group its text shows."""

_TRACEBACK = "The error was raised here:"
"""The first line of a note with a traceback."""

_OWN_FOLDERS = tuple(f"{Path(__file__).parents[1] / name}/" for name in ("async_op", "keygroups", "snapshots"))
"""Frames in these folders say nothing to users, who look for their own code."""


def printable(text: str, limit: int | None = TEXT_MAX) -> str:
    r"""Return text that UTF-8 and every database can hold.

    Half a surrogate pair and NUL are escaped as Python escapes them, because UTF-8 has no form for the first, and
    PostgreSQL refuses the second.

    Parameters
    ----------
    text : str
        The text.
    limit : int, optional
        The most characters to keep; a longer text ends with a note that says how long it was. None keeps all.

    Examples
    --------
    >>> printable("half an emoji: \ud83d")
    'half an emoji: \\ud83d'
    >>> printable("abcdef", limit=3)
    'abc… (6 characters)'
    """
    if limit is not None and len(text) > limit:
        text = f"{text[:limit]}… ({len(text):,} characters)"
    if "\0" in text:
        text = text.replace("\0", "\\x00")
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def text_of(error: object) -> str:
    """Return the message of an error, printable and of bounded length, even if its `str()` raises.

    Examples
    --------
    >>> text_of(ValueError("two"))
    'two'
    >>> class Broken(Exception):
    ...     def __str__(self):
    ...         raise KeyError("id")
    >>> text_of(Broken())
    '(no message: str() of this Broken raised KeyError)'
    """
    text = _attempted(error, str, "no message")
    if not isinstance(error, BaseExceptionGroup):
        return text
    inside = list(errors_in(error))
    shown = "; ".join(map(described, inside[:_SHOWN_MAX]))
    more = f"; and {len(inside) - _SHOWN_MAX} more" if len(inside) > _SHOWN_MAX else ""
    return printable(f"{text}: {shown}{more}")


def errors_in(error: BaseException) -> Iterator[BaseException]:
    """Yield the errors in an exception group, also in groups within it; any other error is the only one.

    Examples
    --------
    >>> list(errors_in(ExceptionGroup("tasks", [OSError(1), ExceptionGroup("more", [KeyError(2)])])))
    [OSError(1), KeyError(2)]
    """
    left = [error]
    while left:
        one = left.pop()
        if isinstance(one, BaseExceptionGroup):
            left += reversed(one.exceptions)
        else:
            yield one


def add_note(error: BaseException, note: str) -> None:
    """Add a note to an error, also to one that refuses new attributes, such as a frozen dataclass."""
    try:
        error.add_note(note)
    except Exception:  # noqa: BLE001 - whatever the error's `__setattr__` raises
        with suppress(Exception):
            BaseException.__setattr__(error, "__notes__", [note])


def described(error: BaseException) -> str:
    """Return the type and the message of an error, as the last line of a traceback has them.

    Examples
    --------
    >>> described(ValueError("two"))
    'ValueError: two'
    >>> described(TimeoutError())
    'TimeoutError'
    """
    return f"{type(error).__name__}: {text_of(error)}".removesuffix(": ")


def traceback_of(error: BaseException) -> str | None:
    """Return the traceback of an error as a note, from the first frame of the user's code; None without such a frame.

    An error that is pickled loses its traceback and its `__cause__`, so they cross the border to another process as
    text. Like all text from outside it is printable and of bounded length; the newest frames are kept.
    """
    try:
        told = traceback.TracebackException.from_exception(error, compact=True)
        if not _cut_to_user(told):
            return None
        text = printable("".join(told.format()), None).rstrip()
    except KeyboardInterrupt:
        raise
    except BaseException:  # noqa: BLE001 - whatever the user's method raises must not hide the first error
        return None
    return f"{_TRACEBACK}\n{text if len(text) <= TEXT_MAX else f'…{text[-TEXT_MAX:]}'}"


def user_line(error: BaseException) -> str | None:
    """Return the file and line of the user's code at which an error was raised; None if it has no such frame.

    That is the outermost line: what it calls belongs to libraries, or is in the traceback.
    """
    for frame, line in traceback.walk_tb(error.__traceback__):
        file = frame.f_code.co_filename
        if not file.startswith(_OWN_FOLDERS):
            return f'"{printable(file)}", line {line}'
    return None


def _cut_to_user(told: traceback.TracebackException) -> bool:
    """Leave out the leading frames of this project, also of causes; return whether any frame is left."""
    told.stack[:] = dropwhile(lambda frame: frame.filename.startswith(_OWN_FOLDERS), told.stack)
    others = (told.__cause__, told.__context__, *(told.exceptions or ()))
    are_left = [_cut_to_user(one) for one in others if one is not None]
    return bool(told.stack) or any(are_left)


def repr_of(value: object, represent: Callable[[Any], str] = repr) -> str:
    """Return the `repr` of a value, printable and of bounded length, even if it raises.

    Examples
    --------
    >>> repr_of("two")
    "'two'"
    """
    return _attempted(value, represent, "no text")


def _attempted(value: object, represent: Callable[[Any], str], failure: str) -> str:
    try:
        return printable(represent(value))
    except KeyboardInterrupt:
        raise
    except BaseException as raised:  # noqa: BLE001 - whatever the user's method raises must not hide the first error
        return f"({failure}: {represent.__name__}() of this {type(value).__name__} raised {type(raised).__name__})"
