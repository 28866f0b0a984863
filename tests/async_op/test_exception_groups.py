"""Exception groups: whatever judges an error looks at the errors in a group, at any depth."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from async_op import (
    AsyncBatchFunction,
    AsyncDataStream,
    AsyncWaitOperator,
    CallRefused,
    ElementFailed,
    FixedDelayRetry,
    RateLimit,
    Resilience,
    RetryAfter,
)
from async_op.resilience import CircuitBreaker
from keygroups.safe_text import errors_in, text_of

FOUND = OSError("refused")


class Refused(CallRefused):
    def __init__(self) -> None:
        Exception.__init__(self, "too expensive")


async def _in_tasks(*errors: Exception) -> None:
    """Raise errors out of a task group within a task group, as a function does that makes several requests."""

    async def fail(error: Exception) -> None:
        await asyncio.sleep(0)  # Python 3.12 leaves a cancellation behind if an eager task fails before the group waits
        raise error

    async with asyncio.TaskGroup() as outer:

        async def request() -> None:
            async with asyncio.TaskGroup() as inner:
                for error in errors:
                    inner.create_task(fail(error))

        outer.create_task(request())


def _grouped(*errors: Exception) -> ExceptionGroup:
    return ExceptionGroup("outer", [ExceptionGroup("inner", errors)])


POLICY = FixedDelayRetry(3, 1.5, retry_on=OSError)


@pytest.mark.parametrize(
    ("errors", "expected"),
    [
        ([FOUND], 1.5),
        ([ValueError("wrong")], None),
        ([ValueError("wrong"), FOUND], 1.5),
        ([RetryAfter(7), ValueError("wrong")], 7),
        ([RetryAfter(7), RetryAfter(9), FOUND], 9),
        ([FOUND, RetryAfter(7), Refused()], None),
    ],
    ids=repr,
)
def test_a_policy_judges_a_group_by_the_errors_in_it(errors: Sequence[Exception], expected: float | None) -> None:
    assert POLICY.delay_after_error(1, _grouped(*errors)) == expected
    assert POLICY.delay_after_error(3, _grouped(*errors)) is None


def test_a_predicate_gets_the_errors_and_not_the_group() -> None:
    seen = []

    def is_passing(error: BaseException) -> bool:
        seen.append(error)
        return error is FOUND

    wrong = ValueError("wrong")
    policy = FixedDelayRetry(2, 0.0, retry_on=is_passing)
    assert policy.delay_after_error(1, _grouped(wrong, FOUND)) == 0.0
    assert policy.delay_after_error(1, _grouped(wrong)) is None
    assert seen == [wrong, FOUND, wrong]


def test_retry_on_may_name_groups() -> None:
    policy = FixedDelayRetry(2, 0.0, retry_on=ExceptionGroup)
    assert policy.delay_after_error(1, _grouped(ValueError("wrong"))) == 0.0
    assert policy.delay_after_error(1, ValueError("wrong")) is None


async def test_a_function_with_a_task_group_is_retried() -> None:
    async def request(value: int, ctx: Any) -> int:
        if ctx.attempt < 3:
            await _in_tasks(OSError("refused"))
        return value

    retry = FixedDelayRetry(3, 0.0, retry_on=OSError)
    assert [one async for one in AsyncDataStream.ordered_wait([1, 2], request, retry=retry)] == [1, 2]


async def test_a_service_that_asks_to_wait_out_of_a_task_group_holds_all_calls() -> None:
    began: list[float] = []

    async def request(value: int, ctx: Any) -> int:
        began.append(asyncio.get_running_loop().time())
        if len(began) == 1:
            await _in_tasks(RetryAfter(0.2))
        return value

    async def requests(values: Sequence[int], ctxs: Any) -> list[Any]:
        began.append(asyncio.get_running_loop().time())
        return [_grouped(RetryAfter(0.2))] if len(began) == 1 else [[value] for value in values]

    class Batches(AsyncBatchFunction):
        max_batch_size = 1

        async def async_invoke_batch(self, values: list[int], ctxs: Any) -> list[Any]:
            return await requests(values, ctxs)

    for chosen in (request, Batches()):
        began.clear()
        options: dict[str, Any] = {"retry": FixedDelayRetry(2, 0.0), "capacity": 1}
        resilience = Resilience(rate_limit=RateLimit(1000, burst=1))
        outputs = AsyncDataStream.ordered_wait([1, 2], chosen, resilience=resilience, **options)
        assert [one async for one in outputs] == [1, 2]
        assert len(began) == 3
        assert began[1] - began[0] >= 0.2 - 1e-3


async def test_failures_in_a_group_open_the_circuit() -> None:
    async def request(value: int) -> None:
        await _in_tasks(OSError("refused"))

    resilience = Resilience(
        circuit_breaker=CircuitBreaker(failure_rate=0.5, window=2, open_seconds=60, when_open="fail"),
        failure_on=OSError,
    )
    operator = AsyncWaitOperator(request, lambda _: None, resilience=resilience, on_error="skip", capacity=1)
    async with operator:
        for value in range(4):
            await operator.process(value)
        await operator.finish()
        assert operator.statistics().resilience is not None
        assert operator.statistics().resilience.circuit == "open"  # type: ignore[union-attr]


async def test_a_budget_that_refuses_within_a_group_is_final() -> None:
    attempts = []

    async def request(value: int, ctx: Any) -> None:
        attempts.append(ctx.attempt)
        await _in_tasks(Refused())

    retry = FixedDelayRetry(5, 0.0)
    with pytest.raises(ElementFailed, match="Refused: too expensive"):
        _ = [one async for one in AsyncDataStream.ordered_wait([1], request, retry=retry)]
    assert attempts == [1]


async def test_messages_name_the_errors_in_a_group() -> None:
    async def request(value: int) -> None:
        await _in_tasks(OSError("refused"), KeyError("id"))

    with pytest.raises(ElementFailed) as raised:
        _ = [one async for one in AsyncDataStream.ordered_wait([1], request)]
    assert "OSError: refused" in str(raised.value)
    assert "KeyError: 'id'" in str(raised.value)
    assert str(pickle.loads(pickle.dumps(raised.value))) == str(raised.value)


def test_the_text_of_a_group_is_bounded() -> None:
    text = text_of(ExceptionGroup("many", [ValueError(number) for number in range(1000)]))
    assert text == "many (1000 sub-exceptions): " + "; ".join(f"ValueError: {n}" for n in range(5)) + "; and 995 more"


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()])
async def test_a_group_with_something_that_is_no_failure_ends_the_operator(error: BaseException) -> None:
    async def request(value: int) -> None:
        raise BaseExceptionGroup("tasks", [ValueError("wrong"), error])

    outputs = AsyncDataStream.ordered_wait([1], request, on_error="skip")
    with pytest.raises(ElementFailed, match="not an Exception"):
        _ = [one async for one in outputs]


GROUPS: Any = st.recursive(
    st.builds(ValueError, st.integers()),
    lambda inner: st.lists(inner, min_size=1).map(lambda errors: ExceptionGroup("group", errors)),
)


@given(GROUPS)
def test_each_error_is_found_once_and_in_its_order(error: Exception) -> None:
    def leaves(one: BaseException) -> list[BaseException]:
        if not isinstance(one, BaseExceptionGroup):
            return [one]
        return [leaf for inner in one.exceptions for leaf in leaves(inner)]

    assert [id(one) for one in errors_in(error)] == [id(one) for one in leaves(error)]
