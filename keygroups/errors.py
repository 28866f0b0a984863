"""The root of the project's errors, and the errors of the pure core."""

from __future__ import annotations

import os
from typing import Any

from keygroups.safe_text import printable, repr_of

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


class KeyGroupsError(Exception):
    """Root of every error that the project raises on purpose.

    Subclasses take typed arguments, keep them as attributes and build the message from them, so
    that a caller can act on the attributes and a reader on the message. They survive pickling,
    because Spark carries them from a worker to the driver. Their messages can be printed and stored
    everywhere. Where a message hides a value, a note says how to see it.
    """

    def __init__(self, *args: object) -> None:
        super().__init__(*(printable(arg, None) if type(arg) is str else arg for arg in args))
        if any(isinstance(text, str) and _HIDDEN in text for text in args):
            self.add_note(f"{SHOW_VALUES}=1 in the environment lets messages show keys, elements and outputs")

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.args, self.__dict__)


class ConfigError(KeyGroupsError, ValueError):
    """An argument is invalid; the message says what to pass instead.

    Attributes
    ----------
    name : str
        The name of the argument.
    value : object
        The value that was passed.
    """

    def __init__(self, name: str, value: object, reason: str) -> None:
        self.name = name
        self.value = value
        super().__init__(f"{name}={value!r}: {reason}")


class NullKey(KeyGroupsError, ValueError):
    """An element has no key, so it belongs to no key group.

    Attributes
    ----------
    where : str
        The column or element without a key.
    """

    def __init__(self, where: str) -> None:
        self.where = where
        super().__init__(
            f"null key in {where}: every element needs a key; fill it in (coalesce) or filter the element out first"
        )


class UnsupportedKey(KeyGroupsError, TypeError):
    """The key's type has no stable hash.

    Attributes
    ----------
    type_name : str
        The type of the key.
    hash_name : str
        The hash that does not support the type.
    """

    def __init__(self, type_name: str, hash_name: str, supported: str) -> None:
        self.type_name = type_name
        self.hash_name = hash_name
        super().__init__(f"keys of type {type_name} have no {hash_name} hash; use one of: {supported}")


class KeyGroupOutOfRange(KeyGroupsError, LookupError):
    """A subtask was asked for a key group that it does not own.

    Attributes
    ----------
    key_group : int
        The key group.
    first, last : int
        The range that the subtask owns, inclusive.
    """

    def __init__(self, key_group: int, first: int, last: int) -> None:
        self.key_group = key_group
        self.first = first
        self.last = last
        super().__init__(
            f"key group {key_group} is not in the owned range [{first}, {last}]: "
            "the element was routed to the wrong subtask; route by subtask_of(key_group, parallelism, max_parallelism)"
        )


class UnstorableValue(KeyGroupsError, TypeError):
    """A value has a type that cannot be stored without executing code on restore.

    Attributes
    ----------
    type_name : str
        The type of the value.
    where : str
        The state or element that holds it.
    reason : str or None
        Why a column of a declared type would change it; None without a declared type.
    """

    def __init__(self, type_name: str, where: str, reason: str | None = None) -> None:
        self.type_name = type_name
        self.where = where
        self.reason = reason
        super().__init__(
            f"{where} holds a {type_name}: {reason}"
            if reason
            else f"{where} holds a {type_name}, which cannot be stored; "
            "use None, bool, int, float, str, bytes, list, tuple, dict, set, "
            "datetime, date, time, timedelta, Decimal or UUID, or register_codec for a type of your own"
        )


class MissingCodec(KeyGroupsError, LookupError):
    """Stored values have a user's type, and this process has no codec for it.

    Attributes
    ----------
    codec : str
        The name of the codec with which the values were written.
    where : str
        What holds the values.
    """

    def __init__(self, codec: str, where: str) -> None:
        self.codec = codec
        self.where = where
        super().__init__(
            f"{where} holds values of the codec {codec!r}, which is not registered in this process; call "
            f"register_codec({codec!r}, …) in a module that every worker imports, before the snapshot is restored"
        )


class SparkNotInstalled(KeyGroupsError, ImportError):
    """A module that needs Spark was imported, but Spark is not installed.

    Attributes
    ----------
    package : str
        The missing package.
    """

    def __init__(self, package: str) -> None:
        self.package = package
        super().__init__(
            f"this part of the library needs {package}, which is not installed: pip install 'keygroups[spark]', "
            "or the PySpark of the release that your cluster runs"
        )


class PackageNotInstalled(KeyGroupsError, ImportError):
    """A method needs a package that is not installed.

    Attributes
    ----------
    package : str
        The missing package.
    method : str
        The method that needs it.
    """

    def __init__(self, package: str, method: str) -> None:
        self.package = package
        self.method = method
        super().__init__(f"{method} needs {package}, which is not installed: pip install {package}")
