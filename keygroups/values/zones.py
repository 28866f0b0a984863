"""Time zones by their names in Arrow and in Spark, as Python has them in `zoneinfo` and `datetime`."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Collection, Iterable
from functools import cache, lru_cache

import pyarrow as pa

_OFFSET = re.compile(r"(?:UTC|GMT|UT|Z)?(?:(?P<sign>[+-])(?P<hours>\d\d?)(?::?(?P<minutes>\d\d))?)?")
"""Time zones that Java knows besides the names of the time zone database."""


@lru_cache
def zone_of(name: str) -> dt.tzinfo:
    """Return the time zone that a column of timestamps names.

    Raises
    ------
    Exception
        It is not known here. What Arrow raises depends on its release, and on whether pytz is installed.

    Examples
    --------
    >>> zone_of("Europe/Berlin"), zone_of("+01:00")
    (zoneinfo.ZoneInfo(key='Europe/Berlin'), datetime.timezone(datetime.timedelta(seconds=3600)))
    """
    zone: dt.tzinfo = pa.lib.string_to_tzinfo(name)
    if not _is_of_pytz(zone):
        return zone
    if name.startswith(("+", "-")):
        return dt.timezone(zone.utcoffset(None) or dt.timedelta())
    from zoneinfo import ZoneInfo  # loading it takes 5 ms

    return ZoneInfo(str(zone))


def zones_of(moments: Iterable[dt.datetime]) -> Collection[dt.tzinfo | None]:
    """Return the time zone objects that some datetimes have, each object once.

    A set would not do, because the time zones of dateutil have no hash.
    """
    return {id(moment.tzinfo): moment.tzinfo for moment in moments}.values()


@lru_cache
def zone_of_session(name: str) -> dt.tzinfo | None:
    """Return the time zone of a session of Spark, which has Java's names; None if it is not known here.

    Examples
    --------
    >>> zone_of_session("GMT+2")
    datetime.timezone(datetime.timedelta(seconds=7200))
    """
    from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError):
        offset = _OFFSET.fullmatch(name)
    if offset is None:
        return None
    minutes = 60 * int(offset["hours"] or 0) + int(offset["minutes"] or 0)
    return dt.timezone(dt.timedelta(minutes=-minutes if offset["sign"] == "-" else minutes))


@cache
def has_zones_of_pytz() -> bool:
    """Return whether Arrow makes values with zones of pytz: before its release 25, where pytz is installed.

    Pandas 2 requires pytz, and Spark requires pandas. Such a zone is none that can be stored, equals no other, and
    differs from one release of Arrow to the next.
    """
    return _is_of_pytz(pa.lib.string_to_tzinfo("UTC"))


def _is_of_pytz(zone: dt.tzinfo) -> bool:
    return type(zone).__module__.partition(".")[0] == "pytz"
