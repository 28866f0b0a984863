"""Checks what a function returned before the operator takes it as outputs, and copies what several will get."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Coroutine, Iterable, Mapping, Sequence
from itertools import chain
from types import AsyncGeneratorType, CoroutineType
from typing import Any

from async_op.errors import InvalidFunctionResult
from keygroups.state.detached import are_immutable, have_types, own_copy

# Compared by exact type: the hot path can afford only one check per output.
UNAWAITED = frozenset({CoroutineType, AsyncGeneratorType, asyncio.Future, asyncio.Task})
"""The types of outputs that the function should have awaited."""

PLAIN = frozenset({list, tuple})
"""The types of results that certainly hold outputs, of a tuple only if it has one item."""


def checked(outputs: Any) -> Sequence[Any]:
    """Return the outputs of one call as a sequence; passing that sequence again returns it unchanged.

    Raises
    ------
    InvalidFunctionResult
        The function returned a single record instead of a list (a mistake even if Python can iterate over it), or
        something that it did not await.
    """
    kind = type(outputs)
    if kind is not list and (kind is not tuple or len(outputs) > 1):
        outputs = _as_list(outputs)
    for output in outputs:
        if type(output) in UNAWAITED:
            raise _not_awaited(output)
    return outputs  # type: ignore[no-any-return]


def own_outputs(outputs: Sequence[Any]) -> Sequence[Any]:
    """Return outputs that their receiver may change, although a cache, a snapshot or another element keeps them."""
    if are_immutable(map(type, outputs)):
        return outputs
    return [own_copy(output) for output in outputs]


def are_single(results: Sequence[Any]) -> bool:
    """Return whether each result of a batch holds one output, and `checked` would certainly return it unchanged."""
    if not have_types(results, PLAIN):
        return False
    try:
        kinds = {type(output) for (output,) in results}
    except ValueError:  # a result holds no output, or several
        return False
    return UNAWAITED.isdisjoint(kinds)


def are_plain(results: Sequence[Any]) -> bool:
    """Return whether `checked` would certainly return each result of a batch unchanged."""
    kinds = set(map(type, results))
    if not kinds <= PLAIN or (tuple in kinds and max(map(len, results)) > 1):
        return False
    return UNAWAITED.isdisjoint(map(type, chain.from_iterable(results)))


def one_for_each(results: Any) -> Sequence[Any]:
    """Return the results of a batch function as a sequence.

    Raises
    ------
    InvalidFunctionResult
        It returned something that cannot hold one result for each value.
    """
    if isinstance(results, list | tuple):
        return results
    if isinstance(results, str | bytes | Mapping) or not isinstance(results, Iterable):
        raise InvalidFunctionResult(results, "a list with one list of outputs for each value")
    return list(results)


def _as_list(outputs: Any) -> list[Any]:
    if isinstance(outputs, Awaitable | AsyncGenerator):
        raise _not_awaited(outputs)
    if isinstance(outputs, tuple):
        raise InvalidFunctionResult(outputs, "a list: a tuple may be one record or many, so [record] for one")
    is_record = isinstance(outputs, str | bytes | bytearray | memoryview | Mapping)
    if is_record or hasattr(outputs, "__arrow_c_stream__") or not isinstance(outputs, Iterable):
        raise InvalidFunctionResult(outputs)
    return list(outputs)


def _not_awaited(outputs: Any) -> InvalidFunctionResult:
    if isinstance(outputs, Coroutine):
        outputs.close()  # otherwise Python would warn elsewhere that it was never awaited
    wanted = "its result: `await` the call in an `async def`, or collect what an `async for` yields in a list"
    return InvalidFunctionResult(outputs, wanted)
