"""The policy by which failed jobs and queries are started again, without either of them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from async_op import ExponentialBackoffRetry, RestartPolicy
from async_op.epochs.restarts import Restarts
from async_op.job.errors import StreamAlreadyRead
from keygroups import ConfigError
from snapshots import IncompatibleSnapshot, WriterFenced

SECONDS = st.floats(0, 1000)


@given(initial=SECONDS, longest=SECONDS, failures=st.integers(1, 5000))
def test_delays_are_those_of_retries_without_jitter(initial: float, longest: float, failures: int) -> None:
    policy = RestartPolicy(5, initial, longest)
    retry = ExponentialBackoffRetry(5, initial, longest, jitter=False)
    assert policy.delay_after(failures) == retry.delay_after(failures)
    assert policy.delay_after(failures) <= policy.delay_after(failures + 1) <= longest


@given(lifetimes=st.lists(st.floats(0, 20), max_size=30), most=st.integers(1, 5))
def test_restarts_in_a_row_have_a_bound_and_quiet_time_ends_the_row(lifetimes: list[float], most: int) -> None:
    policy, now = RestartPolicy(most, 1.0, 4.0, reset_after=10.0), 0.0
    restarts, in_a_row = Restarts(policy, "job a"), 0
    for count, lifetime in enumerate(lifetimes):
        restarts.began(began := now)
        now += lifetime
        has_been_quiet = now - began >= 10
        in_a_row = 0 if has_been_quiet else in_a_row
        delay = restarts.delay_after(OSError("away"), now)
        if in_a_row == most:
            assert delay is None
            return
        in_a_row += 1
        assert delay == policy.delay_after(in_a_row)
        assert (restarts.count, restarts.newest_failure) == (count + 1, "OSError: away")
        now += delay


@pytest.mark.parametrize(
    "error",
    [
        WriterFenced("memory://a", 2, 3),
        IncompatibleSnapshot("hash", "flink", "xxhash64", "pass it"),
        ConfigError("capacity", 0, "more than that"),
        StreamAlreadyRead(2, 3),
        ExceptionGroup("two", [OSError(), WriterFenced("memory://a", 2, 3)]),
    ],
    ids=lambda error: type(error).__name__,
)
def test_what_a_restart_would_meet_again_is_final(error: Exception) -> None:
    assert Restarts(RestartPolicy(), "job a").delay_after(error, 0.0) is None
    assert Restarts(RestartPolicy(), "job a").delay_after(OSError(), 0.0) == 1.0


def test_without_a_policy_every_failure_is_final() -> None:
    assert Restarts(None, "job a").delay_after(OSError(), 0.0) is None


@pytest.mark.parametrize(
    "wrong", [{"max_restarts": 0}, {"initial_delay": -1}, {"max_delay": "a minute"}, {"reset_after": 0}]
)
def test_a_wrong_argument_is_named(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        RestartPolicy(**wrong)
