"""The time zones of columns, as Python has them in `zoneinfo` and `datetime`."""

from __future__ import annotations

import datetime as dt
from functools import cache

import pyarrow as pa


@cache
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


@cache
def has_zones_of_pytz() -> bool:
    """Return whether Arrow makes values with zones of pytz: before its release 25, where pytz is installed.

    Pandas 2 requires pytz, and Spark requires pandas. Such a zone is none that can be stored, equals no other, and
    differs from one release of Arrow to the next.
    """
    return _is_of_pytz(pa.lib.string_to_tzinfo("UTC"))


def _is_of_pytz(zone: dt.tzinfo) -> bool:
    return type(zone).__module__.partition(".")[0] == "pytz"
