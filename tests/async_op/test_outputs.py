"""The quick checks of a whole batch agree with the check of each of its results."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from async_op import InvalidFunctionResult
from async_op.outputs import are_plain, are_single, checked


async def generator() -> AsyncIterator[int]:
    yield 1


SINGLE = ("[1]", "(1,)", "[(1, 2)]", "(None,)")
OTHERS = ("[]", "()", "[1, 2]", "(1, 2)", "'a'", "{1}", "{1: 2}", "None", "[generator()]", "(generator(),)")


@given(st.lists(st.sampled_from(SINGLE + OTHERS)))
@example(["[1]"] * 3)
@example(["[1]", "[]"])
def test_a_batch_that_needs_no_look_at_each_result_would_pass_each_look(shown: list[str]) -> None:
    results: list[Any] = [eval(one) for one in shown]

    assert are_single(results) == all(one in SINGLE for one in shown)
    if are_single(results) or are_plain(results):
        assert all(is_unchanged(result) for result in results)


def is_unchanged(result: Any) -> bool:
    try:
        return checked(result) is result
    except InvalidFunctionResult:
        return False
