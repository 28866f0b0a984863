"""Whether a function and its options can be sent to Python workers, and to processes outside of Spark's tasks."""

from __future__ import annotations

import inspect
import io
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import fields
from functools import partial
from types import FunctionType, MethodType, ModuleType
from typing import Any

from pyspark import Accumulator, Broadcast, cloudpickle
from pyspark.cloudpickle import cloudpickle as internals

from async_op.functions.base import Function
from async_op.functions.plain import Plain, name_of
from async_op.options import OperatorOptions
from async_op.spark.errors import UnpicklableFunction
from async_op.threads.wait_strategies import WaitStrategies
from keygroups.arguments import own_signature
from keygroups.errors import ConfigError

_dumps: Any = cloudpickle.dumps
_Pickler: Any = cloudpickle.CloudPickler
_is_by_reference: Any = internals._should_pickle_by_reference
_globals_used_by: Any = internals._extract_code_globals
_NOT_PICKLED = ("__dict__", "__weakref__", "_abc_impl")
"""What cloudpickle leaves out of a class."""


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
        The function, or what it holds or uses and the error names, cannot be pickled.
    """
    error = _failure_of(function)
    if error is not None:
        name = name_of(function)
        held = [one for one in dict.fromkeys(_culprits(name, function, set())) if one != name]
        raise UnpicklableFunction(name, held, str(error)) from error


def _culprits(name: str, value: object, seen: set[int]) -> Iterator[str]:
    """Yield the names of attributes and variables that cannot be pickled, in a value that has this name itself."""
    if id(value) in seen or _failure_of(value) is None:
        return
    seen.add(id(value))
    inside = [one for part, held in _parts_of(value).items() for one in _culprits(part, held, seen)]
    yield from inside or [name]


def _parts_of(value: object) -> dict[str, object]:
    """Return what is pickled with a function or a class: attributes, and the variables that it uses."""
    match value:
        case FunctionType():
            used = _globals_used_by(value.__code__)
            variables = {name: value.__globals__[name] for name in used if name in value.__globals__}
            defaults = {name: one.default for name, one in inspect.signature(value).parameters.items()}
            return variables | defaults | dict(_variables_around(value))
        case partial():
            signature = own_signature(value.func)
            given = signature and signature.bind_partial(*value.args, **value.keywords).arguments
            return {"func": value.func} | (given or value.keywords)
        case MethodType():
            return {value.__name__: value.__func__} | _attributes_of(value.__self__)
        case Plain():
            call = vars(value)["__wrapped__"]
            is_named = isinstance(call, FunctionType | MethodType | partial)
            return {value.__name__: call} if is_named else _attributes_of(call)
        case Function():
            return _attributes_of(value)
        case type():
            return {name: one for name, one in vars(value).items() if name not in _NOT_PICKLED}
    return {}  # the user has named a client, and not what that is made of


def _variables_around(function: FunctionType) -> Iterator[tuple[str, object]]:
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):  # it has no value yet
            yield name, cell.cell_contents


def _attributes_of(value: object) -> dict[str, object]:
    return getattr(value, "__dict__", {}) | {type(value).__name__: type(value)}


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
