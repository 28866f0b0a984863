"""How long a service asks its callers to wait, as the headers of its answer say it."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime

from keygroups.arguments import Duration, check_duration, check_positive_duration, hidden
from keygroups.errors import ConfigError
from keygroups.ttl import wall_time

_NAMES = (
    re.compile(r"x-ratelimit-(?P<kind>remaining|reset)-(?P<limit>.+)"),
    re.compile(r"anthropic-ratelimit-(?P<limit>.+)-(?P<kind>remaining|reset)"),
)
_PART = re.compile(r"(\d+(?:\.\d+)?)(h|ms|m|us|µs|ns|s)")
_UNIT_SECONDS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}


def seconds_to_wait(headers: Mapping[str, str], *, default: Duration = 1.0, maximum: Duration = 60.0) -> float:
    """Return how long to wait before the next call, as a service's refusal says it in its headers; for `RetryAfter`.

    The first of these that is there and can be read counts:

    1. `retry-after-ms`: milliseconds.
    2. `Retry-After`: seconds, or a date as in HTTP.
    3. `x-ratelimit-reset-…`, as services with OpenAI's interface send it: seconds, or a duration such as `6m0s` or
       `20ms`; and `anthropic-ratelimit-…-reset`: a time as in RFC 3339. Of several, the longest wait counts; if some
       limits are said to have 0 remaining, the longest of theirs.

    Dates are compared with the answer's own `Date`, so that clocks may differ; without it, with the system's clock. A
    date in the past is a wait of zero.

    A good answer has such headers, too, but then a reset is a wait only for a limit of which nothing remains:
    `InvocationContext.heed` reads them.

    Parameters
    ----------
    headers : mapping of str to str
        The headers of an answer, as any client returns them. Case does not matter.
    default : float or timedelta
        The wait if no header says anything.
    maximum : float or timedelta
        The longest wait, whatever the headers say.

    Returns
    -------
    float
        Seconds, between zero and `maximum`.

    Raises
    ------
    ConfigError
        A duration is invalid, or the headers are no mapping of text.

    Examples
    --------
    >>> seconds_to_wait({"Retry-After": "7"})
    7.0
    >>> seconds_to_wait({"x-ratelimit-reset-requests": "20ms", "x-ratelimit-reset-tokens": "1m2.5s"}, maximum=600)
    62.5
    >>> seconds_to_wait({"retry-after": "Wed, 21 Oct 2015 07:28:10 GMT", "date": "Wed, 21 Oct 2015 07:28:00 GMT"})
    10.0
    """
    longest = check_positive_duration("maximum", maximum)
    seconds = check_duration("default", default)
    for found in _asked(_lower(headers)):
        if found is not None:
            seconds = found
            break
    return min(max(0.0, seconds), longest)


def seconds_until_reset(headers: Mapping[str, str], maximum: Duration) -> float:
    """Return how long nothing remains of a limit, as the headers of a good answer say it; zero if something remains.

    Of several limits the longest wait counts, but never more than `maximum`.
    """
    longest = check_positive_duration("maximum", maximum)
    lower = _lower(headers)
    resets, used_up = _resets(lower, _now(lower))
    return min(max([0.0, *(resets.get(limit, 0.0) for limit in used_up)]), longest)


def _lower(headers: Mapping[str, str]) -> dict[str, str]:
    try:
        return {name.lower(): value.strip() for name, value in headers.items()}
    except AttributeError:
        reason = "pass the headers of the answer, a mapping of text to text"
        raise ConfigError("headers", hidden(headers), reason) from None


def _asked(headers: Mapping[str, str]) -> Iterator[float | None]:
    milliseconds = _number(headers.get("retry-after-ms", ""))
    yield None if milliseconds is None else milliseconds / 1000
    after = headers.get("retry-after", "")
    yield _number(after)
    now = _now(headers)
    yield _until(_date(after), now)
    resets, used_up = _resets(headers, now)
    yield max([seconds for limit, seconds in resets.items() if limit in used_up] or resets.values(), default=None)


def _now(headers: Mapping[str, str]) -> float:
    return _date(headers.get("date", "")) or wall_time() / 1000


def _resets(headers: Mapping[str, str], now: float) -> tuple[dict[str, float], set[str]]:
    """Return the seconds until each limit is reset, and the limits of which nothing remains."""
    resets: dict[str, float] = {}
    used_up: set[str] = set()
    for kind, limit, value in _limits_in(headers):
        seconds = _duration(value)
        if kind == "remaining":
            used_up |= {limit} if seconds == 0 else set()
            continue
        seconds = _until(_time(value), now) if seconds is None else seconds
        if seconds is not None:
            resets[limit] = seconds
    return resets, used_up


def _limits_in(headers: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    for name, value in headers.items():
        for pattern in _NAMES:
            found = pattern.fullmatch(name)
            if found is not None:
                yield found["kind"], found["limit"], value


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _duration(text: str) -> float | None:
    parts = _PART.findall(text)
    if parts and "".join(number + unit for number, unit in parts) == text:
        return sum(float(number) * _UNIT_SECONDS[unit] for number, unit in parts)
    return _number(text)


def _date(text: str) -> float | None:
    from email.utils import parsedate_to_datetime  # on first use: much is loaded with it, and few answers have dates

    try:
        return _timestamp(parsedate_to_datetime(text))
    except ValueError:
        return None


def _time(text: str) -> float | None:
    try:
        return _timestamp(datetime.fromisoformat(text))
    except ValueError:
        return None


def _timestamp(moment: datetime) -> float:
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _until(moment: float | None, now: float) -> float | None:
    return None if moment is None else moment - now
