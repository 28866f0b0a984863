"""What cannot be sent to the workers is named as the user has named it; no session is needed for that."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial, wraps
from typing import Any

import pytest

from async_op import AsyncFunction, WaitStrategies
from async_op.options import OperatorOptions
from async_op.spark import UnpicklableFunction
from async_op.spark.task.pickling import check_pickles

# Cloudpickle sends what is defined in a function with all that it uses, as in a notebook; modules are only named.


def _uses_a_variable() -> Any:
    lock = threading.Lock()

    async def call(row: Any) -> Any:
        return [number for number in row if lock]

    return call


def _uses_a_global_variable() -> Any:
    notebook: dict[str, Any] = {"__name__": "__main__", "lock": threading.Lock()}
    exec("async def call(row): return lock", notebook)
    return notebook["call"]


def _uses_a_variable_without_a_value() -> Any:
    lock = threading.Lock()

    async def call(row: Any) -> Any:
        return lock, later

    if not callable(call):
        later = None
    return call


def _calls_another_function() -> Any:
    lock = threading.Lock()

    async def helper() -> Any:
        return lock

    async def call(row: Any) -> Any:
        return call, await helper()

    return call


def _is_decorated() -> Any:
    lock = threading.Lock()

    def limited(function: Any) -> Any:
        @wraps(function)
        async def wrapper(row: Any) -> Any:
            with lock:
                return await function(row)

        return wrapper

    @limited
    async def call(row: Any) -> Any:
        return row

    return call


def _has_a_default() -> Any:
    async def call(row: Any, lock: Any = threading.Lock()) -> Any:  # noqa: B008 - as a user may write it
        return row

    return call


def _is_a_partial() -> Any:
    async def call(lock: Any, row: Any) -> Any:
        return row

    return partial(call, threading.Lock())


def _is_a_method() -> Any:
    class Client:
        def __init__(self) -> None:
            self.lock = threading.Lock()

        async def call(self, row: Any) -> Any:
            return row

    return Client().call


def _is_an_object_with_a_call() -> Any:
    class Call:
        def __init__(self) -> None:
            self.lock = threading.Lock()

        async def __call__(self, row: Any) -> Any:
            return row

    return Call()


def _is_inside_an_attribute() -> Any:
    class Client:
        def __init__(self) -> None:
            self.inner = threading.Lock()

    class Call(AsyncFunction[Any, Any]):
        def __init__(self) -> None:
            self.lock = Client()

        async def async_invoke(self, value: Any, ctx: Any) -> list[Any]:
            return [value]

    return Call()


def _is_an_attribute() -> Any:
    class Call(AsyncFunction[Any, Any]):
        def __init__(self) -> None:
            self.lock = threading.Lock()
            self.settings = {"url": "http://localhost"}

        async def async_invoke(self, value: Any, ctx: Any) -> list[Any]:
            return [value]

    return Call()


def _is_used_by_a_class() -> Any:
    lock = threading.Lock()

    class Call(AsyncFunction[Any, Any]):
        async def async_invoke(self, value: Any, ctx: Any) -> list[Any]:
            return [value, lock]

    return Call()


@pytest.mark.parametrize(
    "function",
    [
        *(
            _uses_a_variable,
            _uses_a_variable_without_a_value,
            _uses_a_global_variable,
            _calls_another_function,
            _is_decorated,
            _has_a_default,
        ),
        *(
            _is_an_object_with_a_call,
            _is_inside_an_attribute,
            _is_a_partial,
            _is_a_method,
            _is_an_attribute,
            _is_used_by_a_class,
        ),
    ],
)
def test_the_variable_or_attribute_that_cannot_be_sent_is_named(function: Callable[[], Any]) -> None:
    with pytest.raises(UnpicklableFunction, match=r"\(its lock\) cannot be sent .* '_thread.lock'") as raised:
        check_pickles(OperatorOptions.of(function()), WaitStrategies())

    assert raised.value.attributes == ["lock"]
