"""Keys, values, times, durations and sizes as people read them; programs get ISO 8601, seconds and bytes."""

from __future__ import annotations

import datetime as dt
import json

from snapshots.inspection.export import plain

_LAST_WATERMARK = 2**63 - 1
"""The watermark of a stream that has ended."""

_UNITS = (("d", 86400), ("h", 3600), ("min", 60))


def value_text(value: object, characters_max: int) -> str:
    r"""Return a value as JSON that shows all characters; a long one is truncated.

    Examples
    --------
    >>> print(value_text({"name": "Zoë\u202e"}, 40))
    {"name": "Zoë\u202e"}
    """
    return _truncated(_json_text(value), characters_max)


def key_text(key: object, characters_max: int) -> str:
    """Return a key as `keygroups get` takes it: JSON, and of several columns one text for each.

    Examples
    --------
    >>> print(key_text(("ann", 7), 40))
    "ann" 7
    """
    columns = key if isinstance(key, tuple) else (key,)
    return _truncated(" ".join(map(_json_text, columns)), characters_max)


def _truncated(text: str, characters_max: int) -> str:
    return text if len(text) <= characters_max else f"{text[:characters_max]}… ({len(text):,} characters)"


def _json_text(value: object) -> str:
    text = json.dumps(plain(value), ensure_ascii=False)
    return text if text.isprintable() else "".join(map(_visible, text))


def _visible(character: str) -> str:
    return character if character.isprintable() else json.dumps(character)[1:-1]


def duration_text(seconds: float) -> str:
    """Return a duration for people, as one or two numbers.

    Examples
    --------
    >>> [duration_text(seconds) for seconds in (0.04, 59.96, 61, 7384, 200_000)]
    ['0.0 s', '1 min 0 s', '1 min 1 s', '2 h 3 min', '2 d 7 h']
    """
    if round(seconds, 1) < 60:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    for unit, length, part, part_length in (("d", 86400, "h", 3600), ("h", 3600, "min", 60), ("min", 60, "s", 1)):
        if whole >= length:
            return f"{whole // length} {unit} {whole % length // part_length} {part}"
    raise AssertionError(seconds)


def moment_text(created_at: str, now: float) -> str:
    """Return when a snapshot was committed, for people: the time in UTC and how long ago that is.

    Parameters
    ----------
    created_at : str
        The time of a manifest; what cannot be read is shown as it is.
    now : float
        The time in seconds since 1970, by this machine's clock.

    Examples
    --------
    >>> moment_text("2026-03-01T12:00:00.123+00:00", 1772370183.2)
    '2026-03-01 12:00 UTC (1 h ago)'
    """
    seconds = seconds_of(created_at)
    if seconds is None:
        return created_at
    moment = dt.datetime.fromtimestamp(seconds, dt.UTC).strftime("%Y-%m-%d %H:%M UTC")
    return f"{moment} ({age_text(created_at, now)})"


def age_text(created_at: str, now: float) -> str:
    """Return how long ago a snapshot was committed, for people, in one unit.

    Examples
    --------
    >>> [age_text("1970-01-01T00:00:00", now) for now in (5.9, 3599.0, 90_000.0, -60.0)]
    ['5 s ago', '59 min ago', '1 d ago', 'in 1 min']
    """
    seconds = seconds_of(created_at)
    if seconds is None:
        return created_at
    age = int(abs(now - seconds))
    unit, length = next((one for one in _UNITS if age >= one[1]), ("s", 1))
    return f"{age // length} {unit} ago" if now >= seconds else f"in {age // length} {unit}"


def watermark_text(milliseconds: int | None) -> str | None:
    """Return a watermark for people, as a time in UTC.

    Parameters
    ----------
    milliseconds : int or None
        Milliseconds since 1970, as programs get it. What is no time that a calendar has is shown as it is.

    Examples
    --------
    >>> watermark_text(1_700_000_000_000), watermark_text(2**63 - 1), watermark_text(None)
    ('2023-11-14 22:13:20 UTC', 'the end', None)
    """
    if milliseconds is None or milliseconds == _LAST_WATERMARK:
        return None if milliseconds is None else "the end"
    try:
        moment = dt.datetime.fromtimestamp(milliseconds / 1000, dt.UTC)
    except (OverflowError, OSError, ValueError):
        return str(milliseconds)
    return moment.strftime("%Y-%m-%d %H:%M:%S UTC")


def size_text(count: float) -> str:
    """Format a number of bytes for people.

    Examples
    --------
    >>> size_text(999), size_text(1536), size_text(5 * 2**40)
    ('999 B', '1.5 KiB', '5.0 TiB')
    """
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:,.0f} {unit}" if unit == "B" else f"{count:,.1f} {unit}"
        count /= 1024
    return f"{count:,.1f} TiB"


def seconds_of(created_at: str) -> float | None:
    """Return a time of ISO 8601 in seconds since 1970; None if it cannot be read.

    Examples
    --------
    >>> seconds_of("1970-01-02T00:00:00"), seconds_of("yesterday")
    (86400.0, None)
    """
    try:
        created = dt.datetime.fromisoformat(created_at)
        return (created if created.tzinfo else created.replace(tzinfo=dt.UTC)).timestamp()
    except (OverflowError, ValueError):
        return None
