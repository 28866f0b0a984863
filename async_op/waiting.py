"""How a thread waits for mail: by parking, or by spinning first and sleeping longer and longer.

The two strategies and their defaults are those of Apache Storm 2.
"""

from __future__ import annotations

import enum
import threading
import time
from dataclasses import dataclass
from typing import Protocol

from keygroups.errors import ConfigError


class WaitSituation(enum.Enum):
    """Why a thread waits."""

    SOURCE = "source"
    """For input."""
    CONSUME = "consume"
    """For outputs, when no input is left."""
    BACK_PRESSURE = "back_pressure"
    """For room in a full operator."""


class WaitStrategy(Protocol):
    """Waits a little, again and again, until what the thread waits for has come. Stateless; any thread may share it."""

    def idle(self, idle_count: int, arrival: threading.Event) -> int:
        """Wait once.

        Parameters
        ----------
        idle_count : int
            How often this thread has waited in vain since something last came; 0 at first.
        arrival : threading.Event
            Set when something has come; a wait ends early with it.

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
    park_seconds : float
        Of one wait; zero means not to wait at all.
    """

    park_seconds: float = 100e-6

    def __post_init__(self) -> None:
        if self.park_seconds < 0:
            raise ConfigError("park_seconds", self.park_seconds, "zero or more")

    def idle(self, idle_count: int, arrival: threading.Event) -> int:
        """Wait once."""
        if self.park_seconds == 0:
            return 1
        arrival.wait(self.park_seconds)
        return idle_count + 1


@dataclass(frozen=True, slots=True)
class ProgressiveWait:
    """Wait longer the longer nothing comes, in three levels.

    Parameters
    ----------
    level1_count : int
        How often not to wait at all.
    level2_count : int
        How often, then, only to let other threads run.
    level3_sleep_seconds : float
        From then on.
    """

    level1_count: int = 1
    level2_count: int = 1000
    level3_sleep_seconds: float = 1e-3

    def __post_init__(self) -> None:
        for name in ("level1_count", "level2_count", "level3_sleep_seconds"):
            if getattr(self, name) < 0:
                raise ConfigError(name, getattr(self, name), "zero or more")

    def idle(self, idle_count: int, arrival: threading.Event) -> int:
        """Wait once."""
        if idle_count < self.level1_count:
            return idle_count + 1
        if idle_count < self.level1_count + self.level2_count:
            time.sleep(0)
            return idle_count + 1
        arrival.wait(self.level3_sleep_seconds)
        return idle_count


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitStrategies:
    """One strategy for each situation."""

    source: WaitStrategy = ProgressiveWait(level1_count=0, level2_count=0)
    consume: WaitStrategy = ProgressiveWait()
    back_pressure: WaitStrategy = ProgressiveWait()

    def of(self, situation: WaitSituation) -> WaitStrategy:
        """Return the strategy for a situation."""
        strategy: WaitStrategy = getattr(self, situation.value)
        return strategy
