"""Answers of language models that come in pieces, as one: an output leaves as a whole."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterable
from contextlib import aclosing
from typing import Any

from async_op.cancellation import closed_after
from async_op.errors import IncompleteAnswer

_DATA = "data:"
_END = "[DONE]"


async def joined_answer(stream: AsyncIterable[bytes | str]) -> tuple[str, dict[str, Any]]:
    """Return the text of a streamed answer as a whole, and what the service says that it has used.

    It reads the server-sent events of OpenAI's chat interface, which most services and servers understand. The stream
    is closed at the end, also if the call fails or is cancelled.

    Parameters
    ----------
    stream : async iterable of bytes or str
        The body of the answer: bytes, cut anywhere, or whole lines of text. `response.content` of aiohttp and
        `response.aiter_lines()` of HTTPX are such.

    Returns
    -------
    text : str
        All pieces of the text together.
    usage : dict
        The service's count of tokens, such as ``{"total_tokens": 32}``; empty if it has sent none. Most services send
        it only if asked: ``"stream_options": {"include_usage": True}``.

    Raises
    ------
    IncompleteAnswer
        The stream has ended before the answer has, perhaps within an event, or the service has reported an error in
        the middle.
    ValueError
        An event before the last one is not JSON, or a field of an event has another type than in OpenAI's interface.

    Examples
    --------
    >>> import asyncio
    >>> async def lines():
    ...     yield 'data: {"choices": [{"delta": {"content": "posi"}}]}'
    ...     yield 'data: {"choices": [{"delta": {"content": "tive"}}]}'
    ...     yield 'data: {"choices": [], "usage": {"total_tokens": 32}}'
    ...     yield "data: [DONE]"
    >>> asyncio.run(joined_answer(lines()))
    ('positive', {'total_tokens': 32})
    """
    pieces: list[str] = []
    usage: dict[str, Any] = {}
    error, cut_off = None, None
    async with aclosing(_data_of(stream)) as events:
        async for data in events:
            if cut_off is not None:
                raise cut_off
            if data == _END:
                return "".join(pieces), usage
            try:
                event = _parsed(data)
            except ValueError as raised:
                cut_off = raised  # if nothing follows, the stream has ended within this event
                continue
            error = _field(event, "error", object)
            if error is not None:
                break
            pieces += map(_text_of, _field(event, "choices", list) or ())
            usage = _field(event, "usage", dict) or usage
    raise IncompleteAnswer(sum(map(len, pieces)), error) from cut_off


def _parsed(data: str) -> Any:
    try:
        return json.loads(data)
    except RecursionError as error:
        raise ValueError("an event is nested too deeply") from error


def _text_of(choice: Any) -> str:
    delta = _field(choice, "delta", dict) or {}  # some services add events of their own that have none
    return _field(delta, "content", str) or ""


def _field(found: Any, name: str, kind: type) -> Any:
    """Return a field of what a service has sent; None if it is missing or null."""
    is_object = isinstance(found, dict)
    value = found.get(name) if is_object else found
    is_right = is_object and isinstance(value, kind | None)
    if not is_right:
        raise ValueError(f"an event has a value of type {type(value).__name__} where its field {name!r} should be")
    return value


async def _data_of(stream: AsyncIterable[bytes | str]) -> AsyncGenerator[str, None]:
    """Yield the data of each server-sent event; comments, which keep the connection alive, have none."""
    async with aclosing(_lines_of(stream)) as lines:
        async for line in lines:
            if line.startswith(_DATA):
                yield line.removeprefix(_DATA).strip()


async def _lines_of(stream: AsyncIterable[bytes | str]) -> AsyncGenerator[str, None]:
    rest = b""
    async with closed_after(stream) as pieces:
        async for piece in pieces:
            if isinstance(piece, str):
                lines = piece.split("\n")
            else:
                # Cut before it is decoded: a piece may end within a character.
                *whole, rest = (rest + piece).split(b"\n")
                lines = [line.decode() for line in whole]
            for line in lines:
                yield line
        yield rest.decode(errors="replace")  # the stream may have ended within a character
