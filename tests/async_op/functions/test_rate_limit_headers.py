"""How long services ask to wait: the forms in which they say it, and what is no such form."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from async_op import RetryAfter, seconds_to_wait
from keygroups import ConfigError

NOON = {"Date": "Wed, 21 Oct 2015 12:00:00 GMT"}
SAID = {
    "seconds": ({"Retry-After": "7"}, 7.0),
    "a fraction": ({"retry-after": " 0.25 "}, 0.25),
    "a date": ({"RETRY-AFTER": "Wed, 21 Oct 2015 12:00:30 GMT"}, 30.0),
    "a date in the past": ({"Retry-After": "Wed, 21 Oct 2015 11:00:00 GMT"}, 0.0),
    "milliseconds": ({"Retry-After-Ms": "1500", "Retry-After": "2"}, 1.5),
    "milliseconds that are none": ({"Retry-After-Ms": "soon", "Retry-After": "2"}, 2.0),
    "a duration": ({"x-ratelimit-reset-tokens": "6m0s"}, 360.0),
    "a duration of all units": ({"x-ratelimit-reset-tokens": "1h2m3.5s20ms10us5ns"}, 3723.520010005),
    "a bare number": ({"x-ratelimit-reset-requests": "12"}, 12.0),
    "the longest": ({"x-ratelimit-reset-requests": "1s", "x-ratelimit-reset-tokens": "20ms"}, 1.0),
    "what is used up": (
        {
            "x-ratelimit-remaining-requests": "59",
            "x-ratelimit-remaining-tokens": "0",
            "x-ratelimit-reset-requests": "40s",
            "x-ratelimit-reset-tokens": "3s",
        },
        3.0,
    ),
    "a moment": ({"anthropic-ratelimit-input-tokens-reset": "2015-10-21T12:00:09Z"}, 9.0),
    "a moment elsewhere": ({"anthropic-ratelimit-requests-reset": "2015-10-21T14:00:09.500+02:00"}, 9.5),
    "the moment of what is used up": (
        {
            "anthropic-ratelimit-requests-remaining": "0",
            "anthropic-ratelimit-requests-reset": "2015-10-21T12:00:02Z",
            "anthropic-ratelimit-output-tokens-remaining": "8000",
            "anthropic-ratelimit-output-tokens-reset": "2015-10-21T12:00:50Z",
        },
        2.0,
    ),
    "nothing": ({"content-type": "application/json"}, 1.0),
    "nothing that can be read": ({"Retry-After": "nan", "x-ratelimit-reset-tokens": "6m of rest"}, 1.0),
    "a count of something else": ({"x-ratelimit-limit-tokens": "5", "x-ratelimit-reset": "1445428800"}, 1.0),
}


@pytest.mark.parametrize(("headers", "seconds"), SAID.values(), ids=SAID)
def test_every_form_is_understood(headers: dict[str, str], seconds: float) -> None:
    assert seconds_to_wait(NOON | headers, maximum=10_000) == pytest.approx(seconds)


def test_no_service_can_make_anybody_wait_for_ever() -> None:
    assert seconds_to_wait({"Retry-After": "86400"}) == 60
    assert seconds_to_wait({"Retry-After": "86400"}, maximum=5) == 5
    assert seconds_to_wait({}, default=9, maximum=5) == 5
    assert RetryAfter(seconds_to_wait({"Retry-After": "-3"})).seconds == 0


def test_without_a_date_of_the_answer_the_systems_clock_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time_ns", lambda: 1445428800 * 10**9)

    assert seconds_to_wait({"Retry-After": "Wed, 21 Oct 2015 12:00:30 GMT"}) == 30


@pytest.mark.parametrize("wrong", [{"default": -1}, {"maximum": 0}, {"maximum": float("inf")}], ids=str)
def test_durations_that_can_never_work_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        seconds_to_wait({"Retry-After": "1"}, **wrong)


_NAMES = ["Retry-After", "retry-after-ms", "x-ratelimit-reset-a", "anthropic-ratelimit-a-reset", "date"]
_SAID = st.text() | st.text("0123456789.hms-:TZ+ ,") | st.sampled_from(["Wed, 21 Oct 0001 99:00:00 GMT", "0001-01-01"])


@given(st.dictionaries(st.sampled_from(_NAMES), _SAID))
def test_whatever_a_service_says_is_a_wait_within_bounds(headers: dict[str, str]) -> None:
    assert 0 <= seconds_to_wait(headers) <= 60
