"""Errors on their way from a child to its parent: whatever pickling does to them, the parent hears all of it."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

import pytest

from async_op import ElementFailed
from async_op.job.errors import ChildFailed
from async_op.job.processes import messages
from async_op.job.processes.child_loop import Failure
from keygroups.safe_text import TEXT_MAX


class TwoArguments(Exception):
    def __init__(self, first: str, second: str) -> None:
        super().__init__(first)


class WithLock(Exception):
    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.lock = threading.Lock()


class BecomesText(Exception):
    def __reduce__(self) -> Any:
        return str, ("no error",)


def load(text: str) -> Any:
    raise LookupError(text)


class LoadsOnlyInTheChild(Exception):
    def __reduce__(self) -> Any:
        return load, ("the child has opened what this needs",)


class EndsTheProcess(Exception):
    def __reduce__(self) -> Any:
        raise SystemExit(3)


class NoTruth(Exception):
    def __bool__(self) -> bool:
        raise LookupError("neither")


@dataclass(frozen=True)
class Frozen(Exception):
    text: str

    def __str__(self) -> str:
        return self.text


STUBBORN = [
    TwoArguments("unique text", "b"),
    WithLock("unique text"),
    BecomesText("unique text"),
    LoadsOnlyInTheChild("unique text"),
    EndsTheProcess("unique text"),
    NoTruth("unique text"),
    Frozen("unique text"),
    ExceptionGroup("several", [WithLock("unique text")]),
]


def sent(error: BaseException) -> Exception:
    failure: Failure = messages.loaded(messages.dumped(Failure.of(error)))
    return failure.raised_in(2)


@pytest.mark.parametrize("error", STUBBORN, ids=lambda error: type(error).__name__)
def test_an_error_of_any_kind_arrives_with_its_text_and_its_child(error: Exception) -> None:
    found = sent(error)
    assert type(found) in {type(error), ChildFailed}
    assert "unique text" in str(found)
    assert any("child 2" in note for note in found.__notes__)


@pytest.mark.parametrize("cause", STUBBORN, ids=lambda error: type(error).__name__)
def test_the_failure_of_an_element_arrives_as_such_whatever_has_caused_it(cause: Exception) -> None:
    error = ElementFailed(7, None, 1, cause, "some/id")
    error.__cause__ = cause
    found = sent(error)
    assert type(found) is ElementFailed
    assert found.element_id == "some/id"
    assert found.__cause__ is None or type(found.__cause__) is type(cause)


def test_the_cause_arrives() -> None:
    error = ValueError("unique text")
    error.__cause__ = OSError("away")
    assert str(sent(error).__cause__) == "away"


def test_the_traceback_of_a_huge_error_is_cut() -> None:
    assert len(Failure.of(ValueError("x" * 10**7)).where) < TEXT_MAX + 50


def test_what_is_no_exception_becomes_one() -> None:
    found = sent(SystemExit(3))
    assert isinstance(found, Exception)
    assert isinstance(found.__cause__, SystemExit)
    assert "child 2" in found.__cause__.__notes__[0]
