"""Short representations of objects: one line of text, and tables for notebooks."""

from __future__ import annotations

import dataclasses
import reprlib
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

LENGTH_MAX = 240
"""The most characters of one representation."""

ROWS_MAX = 50
"""The most rows of one table."""

_VALUE_MAX = 80

_MODULES_OF_PLAIN_VALUES = frozenset({"builtins", "datetime", "decimal", "uuid"})


class _Short(reprlib.Repr):
    """Represents values of users and of this project in few characters, without addresses in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel = 3
        self.maxlist = self.maxtuple = self.maxdict = self.maxset = self.maxfrozenset = self.maxdeque = 4
        self.maxstring = self.maxother = _VALUE_MAX

    def repr_instance(self, x: Any, level: int) -> str:
        """Represent what is no builtin container."""
        name = getattr(x, "__qualname__", None)
        if callable(x) and isinstance(name, str):
            return name
        if "__repr__" not in _defined(type(x)):
            return f"<{type(x).__name__}>"
        return super().repr_instance(x, level)

    repr_function = repr_method = repr_type = repr_builtin_function_or_method = repr_instance


def counted(count: int, noun: str) -> str:
    """Return how many there are of something.

    Examples
    --------
    >>> counted(1, "output"), counted(1200, "output")
    ('1 output', '1,200 outputs')
    """
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def class_in_message(kind: type) -> str:
    """Return the name of a class, and which class of Python it extends: drivers and parsers return such values.

    Examples
    --------
    >>> import http
    >>> class_in_message(int), class_in_message(http.HTTPStatus)
    ('int', 'http.HTTPStatus, a subclass of int')
    """
    bases = (base for base in kind.__mro__[:-1] if base.__module__ in _MODULES_OF_PLAIN_VALUES)
    base = next(bases, kind)
    if base is kind:
        return kind.__qualname__
    return f"{kind.__module__}.{kind.__qualname__}, a subclass of {base.__qualname__}"


def _defined(kind: type) -> set[str]:
    """Return the names that a class or a base of it defines, `object` excepted."""
    return set().union(*(vars(base) for base in kind.__mro__ if base is not object))


_short = _Short()


def short(value: object) -> str:
    """Return the `repr` of a value on one line, cut where it is long.

    Examples
    --------
    >>> short(["a", "b", "c", "d", "e"]), short(len)
    ("['a', 'b', 'c', 'd', ...]", 'len')
    """
    return " ".join(_cut(_short.repr(value), _VALUE_MAX).split("\n"))


def representation(thing: object, facts: Mapping[str, object]) -> str:
    """Return a class with facts about an instance, on one line.

    Examples
    --------
    >>> representation(7, {"digits": 1})
    'int(digits=1)'
    """
    text = ", ".join(f"{name}={short(value)}" for name, value in facts.items())
    name = type(thing).__name__
    return f"{name}({_cut(text, LENGTH_MAX - len(name) - 2)})"


def fields_repr(self: Any) -> str:
    """Represent a dataclass or named tuple by its fields, each of them short; assign it to ``__repr__``."""
    return representation(self, {name: getattr(self, name) for name in _names(self)})


def counts_repr(self: Any) -> str:
    """Represent a dataclass of counters by those that are not zero or None; assign it to ``__repr__``."""
    return representation(self, set_fields(self))


def set_fields(thing: Any) -> dict[str, object]:
    """Return the fields of a dataclass that are neither zero nor empty nor None."""
    return {name: value for name in _names(thing) if (value := getattr(thing, name))}


def _names(thing: Any) -> Iterable[str]:
    if dataclasses.is_dataclass(thing):
        return [field.name for field in dataclasses.fields(thing) if field.repr]
    return thing._fields  # type: ignore[no-any-return]


def html_facts(title: str, facts: Mapping[str, object]) -> str:
    """Return facts as a table for notebooks; everything is escaped."""
    return html_table(title, (), list(facts.items()))


def html_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return rows as a table for notebooks; everything is escaped, and long values and tables are cut.

    Examples
    --------
    >>> html_table("<x>", ["a"], [[1]])
    '<table><caption>&lt;x&gt;</caption><tr><th>a</th></tr><tr><td>1</td></tr></table>'
    """
    head = _row("th", columns) if columns else ""
    body = "".join(_row("td", row) for row in rows[:ROWS_MAX])
    if len(rows) > ROWS_MAX:
        body += _row("td", [f"and {len(rows) - ROWS_MAX:,} more"])
    return f"<table><caption>{escape(_cut(title, LENGTH_MAX))}</caption>{head}{body}</table>"


def _row(tag: str, cells: Iterable[object]) -> str:
    return "<tr>" + "".join(f"<{tag}>{escape(_cell(cell))}</{tag}>" for cell in cells) + "</tr>"


def _cell(value: object) -> str:
    match value:
        case None:
            return "-"
        case bool():
            return str(value)
        case int():
            return f"{value:,}"
        case str():
            return _cut(value, LENGTH_MAX)
        case _:
            return short(value)


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[: length - 1]}…"
