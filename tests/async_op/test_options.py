"""What the entry points can be told: everywhere the same, by name, with the same defaults."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import pytest

from async_op import AsyncDataStream, AsyncWaitOperator
from async_op.options import CallOptions, OperatorOptions, SharedOptions
from async_op.stream.stream import DataFrameOptions, LocalOptions
from keygroups import KeyGroupsError
from keygroups.state import DiskStateBackend
from tests.async_op.kit import ManualClock

WAITS = [AsyncDataStream.ordered_wait, AsyncDataStream.unordered_wait, AsyncDataStream.key_ordered_wait]
ENTRY_POINTS: list[tuple[Callable[..., Any], set[str]]] = [
    (AsyncWaitOperator, {"function"}),
    *((wait, {"function", "mode", "hash"}) for wait in WAITS),
]


async def double(value: int) -> int:
    return 2 * value


def in_a_worker() -> object:
    """Return what belongs to a module of pyspark."""
    return type("Frame", (), {"__module__": "pyspark.sql"})()


@pytest.mark.parametrize(("entry_point", "without"), ENTRY_POINTS)
def test_an_entry_point_shows_each_option_with_its_default(entry_point: Callable[..., Any], without: set[str]) -> None:
    shown = inspect.signature(entry_point).parameters
    options = {field.name: field.default for field in fields(OperatorOptions) if field.name not in without}

    assert {name: shown[name].default for name in options if name in shown} == options
    assert all(shown[name].kind is inspect.Parameter.KEYWORD_ONLY for name in options)


def test_type_checkers_know_the_shared_options_that_there_are() -> None:
    types = {field.name: field.type for field in fields(SharedOptions)}

    assert {name: hint.__forward_arg__ for name, hint in CallOptions.__annotations__.items()} == types


def test_a_misspelled_option_is_the_error_of_the_entry_point() -> None:
    new: Any = AsyncWaitOperator

    with pytest.raises(TypeError, match=r"^AsyncWaitOperator\.__init__\(\) got an unexpected .* 'capcity'$"):
        new(double, print, capcity=3)


@pytest.mark.parametrize("option", ["capcity", "hash", "name", "value_type"])
@pytest.mark.parametrize("job", [{}, {"snapshots": "memory://s", "job_id": "job"}])
@pytest.mark.parametrize("wait", WAITS)
def test_a_stream_has_no_options_of_what_it_is_made_of(wait: Any, job: dict[str, str], option: str) -> None:
    with pytest.raises(TypeError, match=rf"^AsyncDataStream\.\w+_wait\(\) got an unexpected .* '{option}'$"):
        wait([1], double, key_by=hash, **job, **{option: None})


@pytest.mark.parametrize("wait", WAITS)
def test_a_schema_is_refused_where_there_is_no_data_frame(wait: Any) -> None:
    with pytest.raises(KeyGroupsError, match="output_schema"):
        wait([1], double, output_schema="value long")


@pytest.mark.parametrize(
    "option",
    [{"state_backend": DiskStateBackend()}, {"clock": ManualClock()}, {"snapshots": "memory://s"}, {"job_id": "job"}],
)
def test_what_a_data_frame_has_no_use_for_is_refused(option: dict[str, Any]) -> None:
    with pytest.raises(KeyGroupsError, match=next(iter(option))):
        AsyncDataStream.ordered_wait(in_a_worker(), double, output_schema="value long", **option)


@pytest.mark.parametrize("wait", WAITS)
def test_type_checkers_know_each_option_of_a_stream(wait: Any) -> None:
    known = LocalOptions.__annotations__.keys() | DataFrameOptions.__annotations__.keys()

    assert known == inspect.signature(wait).parameters.keys() - {"stream", "function"}
