"""How a thread waits for mail: by parking, or in levels from spinning to sleeping.

The two strategies and their defaults are those of Apache Storm 2.
"""

from __future__ import annotations

import enum
import threading
import time
from dataclasses import dataclass
from typing import Protocol

from keygroups.arguments import Duration, check_duration, check_integer, seconds_of


class WaitSituation(enum.Enum):
    """Why a thread waits."""

    SOURCE = "source"
    """Waits for input."""
    CONSUME = "consume"
    """Waits for outputs after the input has ended."""
    BACK_PRESSURE = "back_pressure"
    """Waits for room in a full operator."""


class WaitStrategy(Protocol):
    """One short wait of a loop that waits until mail has arrived. Stateless, so threads may share it."""

    def idle(self, idle_count: int, arrival: threading.Event) -> int:
        """Wait once.

        Parameters
        ----------
        idle_count : int
            How often this thread has waited in vain since the last arrival; 0 at first.
        arrival : threading.Event
            Set when something has arrived; it ends the wait early.

        Returns
        -------
        int
            The count for the next wait.
        """
        ...


@dataclass(frozen=True, slots=True)
class ParkWait:
    """Wait for the same time each time.

    Parameters
    ----------
    park_seconds : float or timedelta
        The length of one wait in seconds; zero means no wait at all.
    """

    park_seconds: Duration = 100e-6

    def __post_init__(self) -> None:
        check_duration("park_seconds", self.park_seconds, reason="zero or more")

    def idle(self, idle_count: int, arrival: threading.Event) -> int:
        """Wait once, as `WaitStrategy.idle` says."""
        seconds = seconds_of(self.park_seconds)
        if not seconds:
            return 1
        arrival.wait(seconds)
        return idle_count + 1


@dataclass(frozen=True, slots=True)
class ProgressiveWait:
    """Wait in three levels: first not at all, then yield to other threads, then sleep.

    Parameters
    ----------
    level1_count : int
        How many waits return at once.
    level2_count : int
        How many waits after that only let other threads run.
    level3_sleep_seconds : float or timedelta
        The length of every later wait in seconds.
    """

    level1_count: int = 1
    level2_count: int = 1000
    level3_sleep_seconds: Duration = 1e-3

    def __post_init__(self) -> None:
        for name in ("level1_count", "level2_count"):
            check_integer(name, getattr(self, name), 0, reason="zero or more")
        check_duration("level3_sleep_seconds", self.level3_sleep_seconds, reason="zero or more")

    def idle(self, idle_count: int, arrival: threading.Event) -> int:
        """Wait once, as `WaitStrategy.idle` says."""
        if idle_count < self.level1_count:
            return idle_count + 1
        if idle_count < self.level1_count + self.level2_count:
            time.sleep(0)
            return idle_count + 1
        arrival.wait(seconds_of(self.level3_sleep_seconds))
        return idle_count


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitStrategies:
    """The wait strategy of each situation."""

    source: WaitStrategy = ProgressiveWait(level1_count=0, level2_count=0)
    consume: WaitStrategy = ProgressiveWait()
    back_pressure: WaitStrategy = ProgressiveWait()

    def of(self, situation: WaitSituation) -> WaitStrategy:
        """Return the strategy for a situation."""
        strategy: WaitStrategy = getattr(self, situation.value)
        return strategy
