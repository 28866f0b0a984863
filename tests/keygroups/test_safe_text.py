"""Texts of errors and values that come from outside: whatever they hold, they can be printed and stored."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keygroups.errors import ConfigError, KeyGroupsError
from keygroups.safe_text import TEXT_MAX, described, printable, repr_of, text_of

ANY_TEXT = st.text(st.characters(categories=["L", "N", "Cs", "Cc", "So"]))


@given(ANY_TEXT)
def test_any_text_becomes_text_that_utf_8_has_and_a_database_takes(text: str) -> None:
    found = printable(text)
    assert "\0" not in found.encode().decode()
    assert printable(found) == found
    if text.isascii() and "\0" not in text:
        assert found == text


def test_a_long_text_is_cut_and_says_so() -> None:
    assert len(printable("x" * 10 * TEXT_MAX)) < TEXT_MAX + 30
    assert printable("x" * 10 * TEXT_MAX).endswith("… (163,840 characters)")
    assert len(printable("x" * 10 * TEXT_MAX, None)) == 10 * TEXT_MAX


class Speechless(Exception):
    def __init__(self, said: object) -> None:
        self.said = said

    def __str__(self) -> str:
        if isinstance(self.said, BaseException):
            raise self.said
        return self.said  # type: ignore[return-value]

    __repr__ = __str__


@pytest.mark.parametrize(
    "said", [ValueError("no"), None, 3, RecursionError(), SystemExit(3), asyncio.CancelledError()], ids=repr
)
def test_an_error_without_a_text_has_one_that_says_why(said: object) -> None:
    why = type(said).__name__ if isinstance(said, BaseException) else "TypeError"
    assert text_of(Speechless(said)) == f"(no message: str() of this Speechless raised {why})"
    assert described(Speechless(said)).startswith("Speechless: (no message")
    assert repr_of(Speechless(said)) == f"(no text: repr() of this Speechless raised {why})"


def test_ctrl_c_while_a_text_is_made_is_ctrl_c() -> None:
    with pytest.raises(KeyboardInterrupt):
        text_of(Speechless(KeyboardInterrupt()))


def test_a_value_inside_an_error_of_ours_is_printable_too() -> None:
    for error in (KeyGroupsError("half \ud83d"), ConfigError("path", "a", "half \ud83d")):
        assert str(error).encode().endswith(b"half \\ud83d")
