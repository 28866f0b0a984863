"""Bad values, by the place where they turn up: what every door must take for the fault of one element."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any


class Level(enum.IntEnum):
    HIGH = 1


class Color(enum.StrEnum):
    RED = "red"


class Text(str):
    """Text of a class of the user's own."""

    __slots__ = ()


class Mean(Exception):
    def __str__(self) -> str:
        raise KeyError("\ud83d")


def endless() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


def deep() -> list[Any]:
    value: list[Any] = []
    for _ in range(100_000):
        value = [value]
    return value


VALUES: dict[str, Callable[[], Any]] = {
    "half an emoji": lambda: {"id": 0, "text": "\ud83d"},
    "half an emoji as a name": lambda: {"id": 0, "\ud83d": 1},
    "object": lambda: {"id": 0, "of": object()},
    "str-enum": lambda: {"id": 0, "of": Color.RED},
    "int-enum": lambda: {"id": 0, Level.HIGH: 1},
    "endless": lambda: {"id": 0, "of": endless()},
    "deep": lambda: {"id": 0, "of": deep()},
    "a function": lambda: {"id": 0, "of": print},
}
KEYS: dict[str, Any] = {
    "half an emoji": "\ud83d",
    "null": None,
    "2^64": 2**64,
    "str-enum": Color.RED,
    "int-enum": Level.HIGH,
    "text of another class": Text("a"),
    "a list": ["a"],
    "part of it": ("a", Color.RED),
}
ERRORS: dict[str, Callable[[], Exception]] = {
    "half an emoji": lambda: ValueError("\ud83d"),
    "str() raises": Mean,
    "huge": lambda: ValueError("x" * 10**6),
    "nul": lambda: ValueError("\0"),
}
PLACES = {"value": VALUES, "output": VALUES, "state": VALUES, "key": KEYS, "error": ERRORS}
KINDS = [(place, kind) for place, kinds in PLACES.items() for kind in kinds]
