"""The time to live of values in keyed state."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from keygroups.arguments import Duration, check_choice, check_duration, seconds_of
from keygroups.errors import ConfigError

_SECONDS_MAX = 1e14
"""The longest time to live, so that an expiry in milliseconds fits into 64 bits."""

TtlUpdate = Literal["write", "read_and_write"]


@dataclass(frozen=True, slots=True)
class StateTtl:
    """A time to live in processing time. Expired values are never returned.

    Elements of lists and values of maps expire individually. A value keeps the expiry with which it was written, even
    if `seconds` changes later.

    Parameters
    ----------
    seconds : float or timedelta
        How long a value lives, in whole milliseconds.
    update : {"write", "read_and_write"}
        What restarts the time: only a write, or also a read.

    Raises
    ------
    ConfigError
        The time is shorter than a millisecond or infinite, or there is no such update.

    Examples
    --------
    >>> StateTtl(1.5).milliseconds
    1500
    """

    seconds: Duration
    update: TtlUpdate = "write"

    def __post_init__(self) -> None:
        reason = "a value lives at least 0.001 seconds; use None for no end"
        if not 0.001 <= check_duration("ttl", self.seconds, reason=reason) <= _SECONDS_MAX:
            raise ConfigError("ttl", self.seconds, reason)
        check_choice("update", self.update, get_args(TtlUpdate))

    @property
    def milliseconds(self) -> int:
        """The time to live in milliseconds."""
        return round(1000 * seconds_of(self.seconds))


Ttl: TypeAlias = StateTtl | Duration | None
"""What a descriptor accepts as `ttl`. A number of seconds or a timedelta counts from the last write."""


def ttl_of(ttl: Ttl) -> StateTtl | None:
    """Return the `StateTtl` for the `ttl` argument of a descriptor."""
    return ttl if ttl is None or isinstance(ttl, StateTtl) else StateTtl(ttl)


def wall_time() -> int:
    """Return the system's processing time in milliseconds since the epoch."""
    return time.time_ns() // 1_000_000
