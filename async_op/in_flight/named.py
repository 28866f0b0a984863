"""Outputs with ids, for a chain of operators: what leaves one operator comes into the next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from async_op.elements import Element, ElementId, Watermark, looked_up


class NamedOutput:
    """A consumer of outputs that needs their ids. Passed as `output`, it gets all outputs of an element at once."""

    __slots__ = ()

    def take(self, values: Sequence[Any], timestamp: int | None, parent: ElementId) -> None:
        """Take the outputs of one element; `named` makes elements of them."""
        raise NotImplementedError

    def __call__(self, output: Watermark) -> None:
        """Take a watermark."""
        raise NotImplementedError


class OutputIds:
    """The ids of the outputs of one element: its own id with the number of the output.

    They are the same whenever the outputs are emitted, and made only if somebody asks, which costs more than all else
    that a chain does for an element.
    """

    __slots__ = ("_parent",)

    def __init__(self, parent: ElementId) -> None:
        self._parent = parent

    def __getitem__(self, number: int, /) -> str:
        """Return the id of one output."""
        return f"{looked_up(self._parent)}/{number}"


def named(values: Sequence[Any], timestamp: int | None, parent: ElementId) -> list[Element]:
    """Return the outputs of an element as elements of the next operator."""
    ids = OutputIds(parent)
    return [(value, timestamp, (ids, number)) for number, value in enumerate(values)]
