"""The root of the project's errors, and the errors of the pure core."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from inspect import Parameter, Signature
from typing import Any, ClassVar, dataclass_transform

from keygroups.safe_text import described, printable, repr_of, traceback_of

SHOW_VALUES = "KEYGROUPS_SHOW_VALUES"
"""The environment variable that lets messages show users' values, for development."""

_HIDDEN = ", hidden>"


def in_message(value: object, text: str | None = None) -> str:
    """Return a user's value as messages show it: only its type, or its text where `KEYGROUPS_SHOW_VALUES` is set.

    Parameters
    ----------
    value : object
        A key, an element, an output or a part of one.
    text : str, optional
        Its text; by default, its `repr`.
    """
    if os.environ.get(SHOW_VALUES, "0") == "0":
        return f"<{type(value).__qualname__}{_HIDDEN}"
    return repr_of(value) if text is None else printable(text, None)


def _rebuild(cls: type[KeyGroupsError], args: tuple[Any, ...], state: dict[str, Any]) -> KeyGroupsError:
    error = cls.__new__(cls, *args)
    error.args = args
    error.__dict__.update(state)
    return error


@dataclass_transform(eq_default=False)
class KeyGroupsError(Exception):
    """Root of every error that the project raises on purpose.

    A subclass declares its fields as a dataclass does, and its message as a template of them. From this it gets its
    constructor. Callers act on the fields, readers on the message.

    Errors survive pickling, because Spark carries them from a worker to the driver; the traceback of their cause
    becomes a note. Their messages can be printed and stored everywhere. Where a message hides a value, a note says how
    to see it.
    """

    _template: ClassVar[str]

    is_permanent = False
    """Whether a restart would fail again: another run has taken over, or something has to be changed first."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        is_declared = "_template" in vars(cls) or inspect.get_annotations(cls)
        if is_declared and "__init__" not in vars(cls):
            cls.__init__ = _constructor_of(cls)  # type: ignore[method-assign]

    def __init__(self, *args: object) -> None:
        super().__init__(*(printable(arg, None) if type(arg) is str else arg for arg in args))
        if any(isinstance(text, str) and _HIDDEN in text for text in args):
            self.add_note(f"{SHOW_VALUES}=1 in the environment lets messages show keys, elements and outputs")

    def _message(self) -> str:
        """Return the message; overridden where a template does not suffice."""
        return self._template.format_map(vars(self))

    def __reduce__(self) -> tuple[Any, ...]:
        notes = notes_of(self)
        return _rebuild, (type(self), self.args, self.__dict__ | ({"__notes__": notes} if notes else {}))


def as_sent(error: KeyGroupsError) -> KeyGroupsError:
    """Return an error as another process gets it: the traceback of its cause is a note, which can be encoded."""
    rebuild, arguments = error.__reduce__()
    sent: KeyGroupsError = rebuild(*arguments)
    return sent


def with_notes(error: BaseException) -> str:
    """Return the type, the message and the notes of an error as text, for a log or another process."""
    return "\n".join([described(error), *notes_of(error)])


def notes_of(error: BaseException) -> list[str]:
    """Return the notes that an error has in another process: its traceback, or its cause's, is one of them."""
    raised = error.__cause__ if isinstance(error, KeyGroupsError) else error
    note = None if raised is None else traceback_of(raised)
    return [*getattr(error, "__notes__", ()), *([] if note is None else [note])]


def _constructor_of(cls: type[KeyGroupsError]) -> Callable[..., None]:
    """Return an `__init__` that takes the fields of a class and of the classes that it inherits from, in their order.

    The decorator `dataclass` would compile source code, 50 ms for all errors together at the start of each process.
    """
    parameters = {"self": Parameter("self", Parameter.POSITIONAL_OR_KEYWORD)}
    for base in reversed(cls.__mro__):
        for name, hint in inspect.get_annotations(base).items():
            if not name.startswith("_"):
                default = vars(base).get(name, Parameter.empty)
                parameters[name] = parameters["self"].replace(name=name, default=default, annotation=hint)
    signature = Signature(list(parameters.values()))

    def __init__(*args: object, **fields: object) -> None:  # noqa: N807 - it becomes the method of that name
        bound = signature.bind(*args, **fields)
        bound.apply_defaults()
        self = bound.arguments.pop("self")
        vars(self).update(bound.arguments)
        KeyGroupsError.__init__(self, self._message())

    __init__.__signature__ = signature  # type: ignore[attr-defined]
    return __init__


class ConfigError(KeyGroupsError, ValueError):
    """An argument is invalid; the message says what to pass instead."""

    is_permanent = True

    name: str
    """The name of the argument."""
    value: object
    """The value that was passed."""
    reason: str
    """Why it is invalid, and what to pass instead."""

    _template = "{name}={value!r}: {reason}"


class NullKey(KeyGroupsError, ValueError):
    """An element has no key, so it belongs to no key group."""

    where: str
    """The column or element without a key."""

    _template = "null key in {where}: every element needs a key; fill it in (coalesce) or filter the element out first"


class UnsupportedKey(KeyGroupsError, TypeError):
    """The key's type has no stable hash."""

    type_name: str
    """The type of the key."""
    hash_name: str
    """The hash that does not support the type."""
    supported: str
    """The types that it supports."""

    _template = "keys of type {type_name} have no {hash_name} hash; use one of: {supported}"


class KeyGroupOutOfRange(KeyGroupsError, LookupError):
    """A subtask was asked for a key group that it does not own."""

    key_group: int
    """The key group."""
    first: int
    """The first key group that the subtask owns."""
    last: int
    """The last one, inclusive."""

    _template = (
        "key group {key_group} is not in the owned range [{first}, {last}]: the element was routed to the wrong "
        "subtask; route by subtask_of(key_group, parallelism, max_parallelism), and let key_by return the same key "
        "whenever it gets the same element"
    )


class UnstorableValue(KeyGroupsError, TypeError):
    """A value has a type that cannot be stored without executing code on restore, or is too long for a column."""

    type_name: str
    """The type of the value."""
    where: str
    """The state or element that holds it."""
    reason: str | None = None
    """Why a column cannot hold it; None if the type is the reason."""

    def _message(self) -> str:
        if self.reason:
            return f"{self.where} holds a value of type {self.type_name}: {self.reason}"
        return (
            f"{self.where} holds a value of type {self.type_name}, which cannot be stored; use None, bool, int, float, "
            "str, bytes, list, tuple, dict, set, datetime, date, time, timedelta, Decimal or UUID, or register_codec "
            "for a type of your own"
        )


class MissingCodec(KeyGroupsError, LookupError):
    """Stored values have a user's type, and this process has no codec for it."""

    codec: str
    """The name of the codec with which the values were written."""
    where: str
    """What holds the values."""

    _template = (
        "{where} holds values of the codec {codec!r}, which is not registered in this process; call "
        "register_codec({codec!r}, …) in a module that every worker imports, before the snapshot is restored"
    )


class SparkNotInstalled(KeyGroupsError, ImportError):
    """A module that needs Spark was imported, but Spark is not installed."""

    is_permanent = True

    package: str
    """The missing package."""

    _template = (
        "this part of the library needs {package}, which is not installed: pip install 'keygroups[spark]', or the "
        "PySpark of the release that your cluster runs"
    )


class PackageNotInstalled(KeyGroupsError, ImportError):
    """A method needs a package that is not installed."""

    is_permanent = True

    package: str
    """The missing package."""
    method: str
    """The method that needs it."""

    _template = "{method} needs {package}, which is not installed: pip install {package}"
