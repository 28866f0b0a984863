"""Whether a function can be sent to Python workers, and to processes outside of Spark's tasks."""

from __future__ import annotations

import io
from typing import Any

from pyspark import Accumulator, Broadcast, cloudpickle

from async_op.functions import Function
from async_op.plain import name_of
from async_op.spark.errors import UnpicklableFunction

_dumps: Any = cloudpickle.dumps
_Pickler: Any = cloudpickle.CloudPickler


def check_pickles(function: Function) -> None:
    """Refuse a function that cannot be pickled.

    Raises
    ------
    UnpicklableFunction
        The function, or an attribute that the error names, cannot be pickled.
    """
    error = _failure_of(function)
    if error is not None:
        held = [name for name, value in getattr(function, "__dict__", {}).items() if _failure_of(value) is not None]
        raise UnpicklableFunction(name_of(function), held, str(error)) from error


def pickled(value: object) -> bytes:
    """Return a pickle that any process can load, even if it holds classes defined in a notebook."""
    data: bytes = _dumps(value)
    return data


def names_bound_to_tasks(value: object) -> list[str]:
    """Return the kinds of objects in a value that work only in Spark's tasks, such as broadcast variables."""
    finder = _TaskBound(io.BytesIO())
    finder.dump(value)
    return sorted(finder.found)


class _TaskBound(_Pickler):  # type: ignore[misc]
    """Looks at each object that it pickles; the pickle itself is not used."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self.found: set[str] = set()

    def persistent_id(self, value: object) -> str | None:
        if not isinstance(value, Accumulator | Broadcast):
            return None
        self.found.add("an accumulator" if isinstance(value, Accumulator) else "a broadcast variable")
        return "seen"


def _failure_of(value: object) -> Exception | None:
    try:
        _dumps(value)
    except Exception as error:  # noqa: BLE001 - a user's objects may raise anything
        return error
    return None
