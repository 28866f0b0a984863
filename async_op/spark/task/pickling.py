"""Whether a function and its options can be sent to Python workers, and to processes outside of Spark's tasks."""

from __future__ import annotations

import io
from dataclasses import fields
from types import FunctionType, ModuleType
from typing import Any

from pyspark import Accumulator, Broadcast, cloudpickle
from pyspark.cloudpickle import cloudpickle as internals

from async_op.functions.base import Function
from async_op.functions.plain import name_of
from async_op.options import OperatorOptions
from async_op.spark.errors import UnpicklableFunction
from async_op.threads.wait_strategies import WaitStrategies
from keygroups.errors import ConfigError

_dumps: Any = cloudpickle.dumps
_Pickler: Any = cloudpickle.CloudPickler
_is_by_reference: Any = internals._should_pickle_by_reference


def check_pickles(options: OperatorOptions, wait_strategies: WaitStrategies) -> None:
    """Refuse a function or an option that cannot be pickled.

    Raises
    ------
    UnpicklableFunction
        The function, or an attribute that the error names, cannot be pickled.
    ConfigError
        An option cannot be pickled.
    """
    _check_function(options.function)
    named = {field.name: getattr(options, field.name) for field in fields(options)}
    for name, value in (named | {"wait_strategies": wait_strategies}).items():
        if (error := _failure_of(value)) is not None:
            reason = f"it cannot be sent to the workers: {error}; keep only settings in it"
            raise ConfigError(name, value, reason) from error


def _check_function(function: Function) -> None:
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
    return sorted(_looked_at(value).bound_to_tasks)


def modules_imported_by(value: object) -> set[str]:
    """Return the top-level modules that a process must be able to import to load the pickle of a value."""
    return {name.partition(".")[0] for name in _looked_at(value).modules}


def _looked_at(value: object) -> _Looker:
    looker = _Looker(io.BytesIO())
    looker.dump(value)
    return looker


class _Looker(_Pickler):  # type: ignore[misc]
    """Looks at each object that it pickles; the pickle itself is not used."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self.bound_to_tasks: set[str] = set()
        self.modules: set[str] = set()

    def persistent_id(self, value: object) -> str | None:
        if isinstance(value, Accumulator | Broadcast):
            self.bound_to_tasks.add("an accumulator" if isinstance(value, Accumulator) else "a broadcast variable")
            return "seen"
        if isinstance(value, type | FunctionType | ModuleType) and _is_by_reference(value):
            self.modules.add(value.__name__ if isinstance(value, ModuleType) else value.__module__)
        return None


def _failure_of(value: object) -> Exception | None:
    try:
        _dumps(value)
    except Exception as error:  # noqa: BLE001 - a user's objects may raise anything
        return error
    return None
