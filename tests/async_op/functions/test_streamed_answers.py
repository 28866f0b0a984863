"""Streamed answers: however they are cut, they are joined; whatever ends them early is an error, and closes them."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from async_op import AsyncDataStream, FixedDelayRetry, IncompleteAnswer, InvocationContext, joined_answer
from async_op.testing import run
from tests.async_op.kit import settle
from tests.examples import scaled

END = "data: [DONE]"


def event(content: str | None = None, **others: Any) -> str:
    choices = [] if content is None else [{"index": 0, "delta": {"content": content}}]
    return f"data: {json.dumps({'choices': choices} | others, ensure_ascii=False)}"


class Answer:
    """A streamed answer: its pieces, what happens after them, and whether it was closed."""

    def __init__(self, *pieces: Any, then: BaseException | None = None) -> None:
        self.pieces = pieces
        self.then = then
        self.is_closed = False

    async def stream(self) -> AsyncIterator[Any]:
        try:
            for piece in self.pieces:
                yield piece
            if self.then is not None:
                raise self.then
        finally:
            self.is_closed = True


async def test_the_pieces_of_the_text_are_joined_and_the_stream_is_closed() -> None:
    usage = {"prompt_tokens": 30, "total_tokens": 32}
    lines = event("posi", usage=None), "", event("tive", usage=None), "", event(usage=usage), "", END
    answer = Answer(*lines, "never read")

    assert await joined_answer(answer.stream()) == ("positive", usage)
    assert answer.is_closed


STRANGE: dict[str, tuple[Sequence[str], str]] = {
    "a comment": ([": still working", event("yes")], "yes"),
    "other fields": (["event: message", "id: 7", event("yes"), "retry: 5"], "yes"),
    "no space": ([event("yes").replace("data: ", "data:")], "yes"),
    "a role": (['data: {"choices": [{"delta": {"role": "assistant", "content": null}}]}', event("yes")], "yes"),
    "no delta": (['data: {"choices": [{"finish_reason": "stop"}]}', event("yes")], "yes"),
    "no choices": (['data: {"prompt_filter_results": []}', event("yes")], "yes"),
    "no error": ([event("yes", error=None)], "yes"),
    "a separator of lines that is none": ([event("one\u2028two\x85three")], "one\u2028two\x85three"),
    "nothing but the end": ([], ""),
}


@pytest.mark.parametrize(("lines", "text"), STRANGE.values(), ids=STRANGE)
async def test_what_services_send_besides_is_understood(lines: Sequence[str], text: str) -> None:
    assert await joined_answer(Answer(*lines, END).stream()) == (text, {})
    whole = "\r\n".join([*lines, END])
    assert await joined_answer(Answer(whole.encode()).stream()) == (text, {})


@given(st.lists(st.text()), st.lists(st.integers(0, 2000)))
def test_bytes_may_be_cut_anywhere(pieces: list[str], cuts: list[int]) -> None:
    body = "\n\n".join([*map(event, pieces), event(usage={"total_tokens": 5}), END]).encode()
    edges = [0, *sorted(cut % len(body) for cut in cuts), len(body)]
    chunks = [body[start:end] for start, end in itertools.pairwise(edges)]

    assert run(joined_answer(Answer(*chunks).stream())) == ("".join(pieces), {"total_tokens": 5})


class Body:
    """A body that is no generator, and cannot be closed."""

    def __init__(self, *lines: bytes) -> None:
        self.lines = iter(lines)

    def __aiter__(self) -> Body:
        return self

    async def __anext__(self) -> bytes:
        for line in self.lines:
            return line
        raise StopAsyncIteration


async def test_a_body_that_nobody_can_close_is_joined_too() -> None:
    assert await joined_answer(Body(f"{event('yes')}\n".encode(), END.encode())) == ("yes", {})


@pytest.mark.parametrize("pieces", [(), ("",), (b"",), (": nothing yet",)], ids=str)
async def test_an_empty_stream_is_no_empty_answer(pieces: Sequence[Any]) -> None:
    with pytest.raises(IncompleteAnswer, match="the stream ended after 0 characters") as caught:
        await joined_answer(Answer(*pieces).stream())
    assert (caught.value.characters, caught.value.reported) == (0, "None")


async def test_an_answer_that_breaks_off_is_none() -> None:
    answer = Answer(event("posi"), event("tiv"))

    with pytest.raises(IncompleteAnswer) as caught:
        await joined_answer(answer.stream())
    assert caught.value.characters == 7


async def test_an_error_that_the_service_reports_ends_the_answer() -> None:
    answer = Answer(event("posi"), 'data: {"error": {"message": "overloaded"}}', event("tive"), END)

    with pytest.raises(IncompleteAnswer, match="the service reported") as caught:
        await joined_answer(answer.stream())
    assert (caught.value.characters, "overloaded" in caught.value.reported) == (4, True)
    assert answer.is_closed


@pytest.mark.parametrize("kind", [ConnectionResetError, KeyError, asyncio.CancelledError])
async def test_an_error_of_the_stream_comes_through(kind: type[BaseException]) -> None:
    answer = Answer(event("posi"), then=kind("in the middle"))

    with pytest.raises(kind, match="in the middle"):
        await joined_answer(answer.stream())
    assert answer.is_closed


WHOLE = "\n\n".join((event("posi"), event("tive, é"), event(usage={"total_tokens": 32}), END)).encode()


async def test_an_answer_that_ends_anywhere_before_its_end_is_incomplete() -> None:
    for length in range(len(WHOLE)):
        answer = Answer(WHOLE[:length])

        with pytest.raises(IncompleteAnswer, match="the stream ended after"):
            await joined_answer(answer.stream())
        assert answer.is_closed


async def test_a_line_that_breaks_off_is_incomplete_although_its_end_is_unknown() -> None:
    """`aiter_lines` of HTTPX gives the rest of a stream as a line."""
    answer = Answer(event("posi"), 'data: {"choices": [{"delta": {"con')

    with pytest.raises(IncompleteAnswer) as caught:
        await joined_answer(answer.stream())
    assert caught.value.characters == len("posi")
    assert isinstance(caught.value.__cause__, ValueError)


async def test_an_event_that_cannot_be_read_closes_the_stream() -> None:
    answer = Answer(event("posi"), "data: {", END)

    with pytest.raises(ValueError, match="Expecting"):
        await joined_answer(answer.stream())
    assert answer.is_closed


ODD: list[Any] = [None, True, 0, "x", [], {}, [None], ["x"], [[]], {"a": 1}]


@given(st.sampled_from(ODD), st.sampled_from(ODD), st.sampled_from(["choices", "usage", "error", "object"]))
@settings(max_examples=scaled(400))
def test_an_event_of_any_shape_is_read_or_is_an_error_that_names_the_field(odd: Any, other: Any, name: str) -> None:
    shapes = [odd, {name: odd}, {"choices": [odd]}, {"choices": [{"delta": odd}]}]
    shapes += [{"choices": [{"delta": {"content": odd}}], "usage": other}]
    for shape in shapes:
        try:
            text, usage = asyncio.run(joined_answer(Answer(f"data: {json.dumps(shape)}", END).stream()))
        except IncompleteAnswer as error:
            assert name == "error", error
        except ValueError as error:
            assert "an event has a value of type" in str(error)
        else:
            assert isinstance(text, str)
            assert isinstance(usage, dict)


async def test_an_event_that_is_nested_too_deeply_is_no_answer() -> None:
    with pytest.raises(ValueError, match="nested too deeply"):
        await joined_answer(Answer("data: " + "[" * 100_000, END).stream())


async def test_a_cancellation_closes_the_stream() -> None:
    closed = []

    async def silent() -> AsyncIterator[str]:
        try:
            yield event("posi")
            await asyncio.Event().wait()
        finally:
            closed.append(True)

    call = asyncio.create_task(joined_answer(silent()))
    await settle()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert closed == [True]


def test_an_answer_that_breaks_off_is_asked_for_again() -> None:
    async def ask(value: str, ctx: InvocationContext) -> str:
        end = [END] if ctx.attempt > 1 else []
        return (await joined_answer(Answer(event(value), event("!"), *end).stream()))[0]

    async def outputs() -> list[str]:
        retry = FixedDelayRetry(2, 1.0, retry_on=IncompleteAnswer)
        return [output async for output in AsyncDataStream.ordered_wait(["a", "b"], ask, retry=retry)]

    assert run(outputs()) == ["a!", "b!"]
