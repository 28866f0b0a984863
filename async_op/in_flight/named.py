"""Outputs with ids, for a chain of operators: what leaves one operator comes into the next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from async_op.elements import Record, Watermark, looked_up
from async_op.identity import timer_id
from async_op.in_flight.entries import Block, Entry
from async_op.in_flight.in_flight import InFlight


class NamedRecord(NamedTuple):
    """An output with the id that it has as an element of the next operator.

    The id is made of the id of its input and the number of the output, so it is the same whenever it is emitted.
    """

    value: Any
    timestamp: int | None
    element_id: str


class NamedInFlight(InFlight):
    """Calls `output` with each `NamedRecord` in place of a `Record`. The parameters are those of `InFlight`."""

    __slots__ = ("_number", "_parent", "_receive")

    def __init__(self, mode: str, output: Any, *others: Any) -> None:
        self._receive = output
        self._parent = ""
        self._number = 0
        super().__init__(mode, self._name, *others)

    def leave(self, entry: Entry) -> None:
        """Emit a completed entry."""
        self._begin(looked_up(entry.element_id) or timer_id(entry.value, entry.key))
        super().leave(entry)

    def _emit(self, block: Block, outputs: Sequence[Sequence[Any]]) -> int:
        for values, (_, timestamp, element_id) in zip(outputs, block.elements, strict=True):
            self._begin(looked_up(element_id) or "")
            for value in values:
                self._name(Record(value, timestamp))
        return sum(map(len, outputs))

    def _begin(self, parent: str) -> None:
        self._parent, self._number = parent, 0

    def _name(self, output: Record | Watermark) -> None:
        if isinstance(output, Watermark):
            self._receive(output)
            return
        element_id = f"{self._parent}/{self._number}"
        self._number += 1
        self._receive(NamedRecord(output.value, output.timestamp, element_id))
