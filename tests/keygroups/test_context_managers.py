"""Context managers made of generators behave like those of `contextlib`, and pass on any error unchanged."""

from __future__ import annotations

import contextlib
import dataclasses
import traceback
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from async_op.testing import run
from keygroups import context_managers
from keygroups.safe_text import add_note


@dataclasses.dataclass(frozen=True)
class Frozen(Exception):
    code: int


@dataclasses.dataclass(frozen=True, slots=True)
class FrozenWithSlots(Exception):
    code: int


def passes() -> Iterator[str]:
    try:
        yield "entered"
    finally:
        told.append("left")


def swallows() -> Iterator[str]:
    with contextlib.suppress(BaseException):
        yield "entered"


def replaces() -> Iterator[str]:
    try:
        yield "entered"
    except BaseException as error:
        raise LookupError("another") from error


def raises_after() -> Iterator[str]:
    yield "entered"
    raise LookupError("after")


def never_yields() -> Iterator[str]:
    yield from ()


def yields_twice() -> Iterator[str]:
    with contextlib.suppress(BaseException):
        yield "entered"
    yield "again"


told: list[str] = []

KINDS = [None, ValueError, StopIteration, StopAsyncIteration, RuntimeError, KeyboardInterrupt, GeneratorExit]
GENERATORS = [passes, swallows, replaces, raises_after, never_yields, yields_twice]


def raise_if_any(error: BaseException | None) -> None:
    if error is not None:
        raise error


def outcome(
    made: Callable[..., Any], function: Callable[[], Iterator[str]], kind: type[BaseException] | None
) -> object:
    told.clear()
    error = None if kind is None else kind(1)
    try:
        with made(function)() as entered:
            told.append(entered)
            raise_if_any(error)
    except BaseException as raised:  # noqa: BLE001 - it is compared
        frames = [frame.name for frame in traceback.extract_tb(raised.__traceback__)] if raised is error else None
        return type(raised), raised is error, type(raised.__cause__), frames, tuple(told)
    return tuple(told)


async def async_outcome(
    made: Callable[..., Any], function: Callable[[], Iterator[str]], kind: type[BaseException] | None
) -> object:
    async def steps() -> AsyncIterator[str]:
        with contextlib.contextmanager(function)() as entered:
            yield entered
            if function is yields_twice:
                yield "again"

    told.clear()
    error = None if kind is None else kind(1)
    try:
        async with made(steps)() as entered:
            told.append(entered)
            raise_if_any(error)
    except BaseException as raised:  # noqa: BLE001 - it is compared
        return type(raised), raised is error, type(raised.__cause__), tuple(told)
    return tuple(told)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("function", GENERATORS)
def test_it_does_what_contextlib_does(function: Callable[[], Iterator[str]], kind: type[BaseException] | None) -> None:
    wanted = outcome(contextlib.contextmanager, function, kind)
    assert outcome(context_managers.contextmanager, function, kind) == wanted


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("function", GENERATORS)
def test_it_does_what_contextlib_does_asynchronously(
    function: Callable[[], Iterator[str]], kind: type[BaseException] | None
) -> None:
    wanted = run(async_outcome(contextlib.asynccontextmanager, function, kind))
    assert run(async_outcome(context_managers.asynccontextmanager, function, kind)) == wanted


@pytest.mark.parametrize("kind", [Frozen, FrozenWithSlots])
async def test_an_error_that_refuses_attributes_passes(kind: type[Frozen]) -> None:
    with pytest.raises(kind), context_managers.contextmanager(passes)():
        raise kind(503)

    async def steps() -> AsyncIterator[None]:
        yield

    with pytest.raises(kind):
        async with context_managers.asynccontextmanager(steps)():
            raise kind(503)


@pytest.mark.parametrize("error", [ValueError(1), Frozen(2), FrozenWithSlots(3)], ids=repr)
def test_a_note_is_added_to_any_error(error: BaseException) -> None:
    add_note(error, "one")
    add_note(error, "two")
    assert error.__notes__ == ["one", "two"]
