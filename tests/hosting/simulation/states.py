"""The states of the simulated function, and what each row does to them."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from typing import Any

import pyarrow as pa

from keygroups import AggregatingState, ListState, MapState, OperatorListState, ReducingState, ValueState
from keygroups.descriptors import StateDescriptor
from tests.simulation.plain import plain

HISTORY = ValueState("history", pa.list_(pa.int64()), default=())
LINE = ListState("line", pa.int64())
MARKS = MapState("marks", pa.map_(pa.string(), pa.int64()))
TOTAL = ReducingState("total", operator.add, pa.int64())
TALLY = AggregatingState("tally", list, lambda held, number: [*held, number], len, pa.list_(pa.int64()))
TTL_MS = 600_000
LIVING = MapState("living", pa.map_(pa.string(), pa.int64()), ttl=TTL_MS / 1000)
"""Has an entry for each row, until it expires: in many runs before the end, in some before it is committed."""

SEEN = OperatorListState("seen", pa.int64())
"""The rows for which calls have begun, each as often as that."""

ARMED = ValueState("armed", pa.list_(pa.int64()), default=())

STATES: tuple[StateDescriptor, ...] = (HISTORY, LINE, MARKS, TOTAL, TALLY, LIVING)
BY_NAME = {state.name: state for state in STATES}


def _write_line(line: Any, number: int) -> None:
    match number % 6:
        case 3:
            line.add_all([number, -number])
        case 4:
            line.update([number, -number])
        case 5:
            line.clear()
        case _:
            line.add(number)


def _write_marks(marks: Any, number: int) -> None:
    mark = f"mark {number % 2}"
    if number % 11 == 10:
        marks.clear()
    elif number % 3 == 2:
        marks.remove(mark)
    else:
        marks.put(mark, number)


_WRITES: dict[str, Callable[[Any, int], None]] = {
    HISTORY.name: lambda history, number: history.update([*history.value(), number]),
    LINE.name: _write_line,
    MARKS.name: _write_marks,
    TOTAL.name: lambda total, number: total.add(number + 1),
    TALLY.name: lambda tally, number: tally.add(number),
    LIVING.name: lambda living, number: living.put(f"row {number}", number),
}


def write(state: StateDescriptor, handle: Any, number: int) -> None:
    """Do to a state, of an invocation or a plain one, what a row does."""
    _WRITES[state.name](handle, number)


def after(state: StateDescriptor, numbers: Iterable[int]) -> Any:
    """Return what a key has of a state after some rows, one after the other."""
    handle = plain(state)
    for number in numbers:
        write(state, handle, number)
    return handle
