"""How long a value of keyed state lives."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from keygroups.errors import ConfigError

_SECONDS_MAX = 1e14
"""So that an expiry, in milliseconds, fits into 64 bits."""

TtlUpdate = Literal["write", "read_and_write"]


@dataclass(frozen=True, slots=True)
class StateTtl:
    """A time to live, counted in processing time. What has expired is never returned.

    Elements of lists and values of maps expire one by one. A value keeps the expiry that it was written with when
    `seconds` is another number later.

    Parameters
    ----------
    seconds : float
        How long a value lives; counted in whole milliseconds.
    update : {"write", "read_and_write"}
        What begins the time anew: a write, or a read as well.

    Raises
    ------
    ConfigError
        The time is shorter than a millisecond or has no end, or there is no such update.

    Examples
    --------
    >>> StateTtl(1.5).milliseconds
    1500
    """

    seconds: float
    update: TtlUpdate = "write"

    def __post_init__(self) -> None:
        if not 0.001 <= self.seconds <= _SECONDS_MAX:
            raise ConfigError("ttl", self.seconds, "a value lives at least 0.001 seconds; use None for no end")
        if self.update not in get_args(TtlUpdate):
            raise ConfigError("update", self.update, f"use one of {', '.join(get_args(TtlUpdate))}")

    @property
    def milliseconds(self) -> int:
        """How long a value lives."""
        return round(1000 * self.seconds)


Ttl: TypeAlias = StateTtl | float | None
"""What a descriptor takes: a number is the seconds since the last write."""


def ttl_of(ttl: Ttl) -> StateTtl | None:
    """Return what a descriptor was given as a `StateTtl`."""
    return ttl if ttl is None or isinstance(ttl, StateTtl) else StateTtl(ttl)


def wall_time() -> int:
    """Return the processing time: milliseconds since the epoch."""
    return time.time_ns() // 1_000_000
