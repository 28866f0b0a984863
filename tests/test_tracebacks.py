"""The traceback of the user's code crosses every border: it is a note of the error in the process that gets it."""

from __future__ import annotations

import asyncio
import pickle
import traceback
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from async_op import AsyncWaitOperator, FixedDelayRetry
from async_op.dead_letters import DeadLetter, row_of
from async_op.hosting.messages import Failed, Reply, Status
from async_op.hosting.wire import frames
from keygroups.errors import KeyGroupsError, as_sent
from keygroups.safe_text import TEXT_MAX, traceback_of
from tests.test_errors import every_kind


def typo(value: Any, depth: int = 0) -> Any:
    return typo(value, depth - 1) if depth else value["idd"]  # the user's line


def raised(depth: int = 0) -> KeyError:
    try:
        typo({}, depth)
    except KeyError as error:
        return error
    raise AssertionError


def sent(reply: Reply) -> Any:
    """Return a reply as the feeder gets it."""
    frame = frames.encode_reply(reply)
    _, kind = frames.size_and_kind(frame[: frames.HEADER_BYTES])
    return frames.decode(kind, frame[frames.HEADER_BYTES :])


class Unsendable(Exception):
    def __init__(self, one: object, two: object) -> None:
        super().__init__("no")


async def failed(**options: Any) -> Exception:
    """Return the error that an operator fails with."""
    operator = AsyncWaitOperator(**({"output": lambda _: None, "timeout": 60.0} | options))
    try:
        async with operator:
            await operator.process(1)
            await operator.finish()
    except Exception as error:  # noqa: BLE001 - returned
        return error
    raise AssertionError


async def call(value: Any) -> Any:
    return [typo({})]


async def refused(value: Any) -> Any:
    raise OSError


USERS: dict[str, dict[str, Any]] = {
    "the function": {"function": call},
    "the key": {"function": call, "key_by": lambda value: typo({})},
    "a retry's predicate": {"function": refused, "retry": FixedDelayRetry(3, 0.0, retry_on=lambda _: typo({}))},
}


@pytest.mark.parametrize("user", USERS)
def test_whatever_of_the_user_fails_the_error_that_is_sent_shows_its_line_and_no_line_of_this_project(
    user: str,
) -> None:
    error = asyncio.run(failed(**USERS[user]))
    (note,) = [one for one in sent(Failed(error)).error.__notes__ if "The error was raised here" in one]
    assert 'return typo(value, depth - 1) if depth else value["idd"]  # the user\'s line' in note
    assert "KeyError: 'idd'" in note
    assert "async_op/calls" not in note


@given(st.sampled_from(every_kind()), st.integers(1, 3))
def test_an_error_sent_over_many_borders_has_the_note_once(kind: type[KeyGroupsError], borders: int) -> None:
    error = kind.__new__(kind)
    error.__cause__ = raised()
    for _ in range(borders):
        error = pickle.loads(pickle.dumps(error))
    assert len(error.__notes__) == 1
    assert "# the user's line" in error.__notes__[0]


@pytest.mark.parametrize("cause", [raised(), Unsendable(1, 2).with_traceback(raised().__traceback__)])
def test_an_error_of_another_kind_is_sent_with_its_traceback(cause: Exception) -> None:
    for error in (sent(Failed(cause)).error, sent(Status(failure=cause)).failure):
        assert "# the user's line" in "".join(traceback.format_exception(error))


def test_a_dead_letter_has_the_traceback_of_its_last_error() -> None:
    letter = DeadLetter(value=1, timestamp=None, key=None, idempotency_key="a", attempts=1, error=raised())
    assert "# the user's line" in str(row_of(letter)["error_traceback"])


def test_causes_and_groups_are_shown_and_frames_of_this_project_left_out() -> None:
    error = ValueError("half an emoji: \ud83d")
    error.__cause__ = ExceptionGroup("tasks", [raised()])
    text = str(traceback_of(error))
    assert "# the user's line" in text
    assert "\\ud83d" in text
    text.encode()


def test_of_a_long_traceback_the_newest_frames_are_kept() -> None:
    async def deep(value: Any) -> Any:
        exec(
            "\n".join(f"def f{n}(): return f{n + 1}()" for n in range(600)) + "\nf600 = lambda: typo({})\nf0()",
            globals(),
        )

    error = asyncio.run(failed(function=deep))
    (note,) = as_sent(error).__notes__[-1:]
    assert len(note) <= TEXT_MAX + 100
    assert "# the user's line" in note


def test_an_error_without_the_users_code_has_no_traceback() -> None:
    assert traceback_of(ValueError("never raised")) is None
