"""How a thread waits: by parking, or in levels from spinning to sleeping. Users choose for each situation.

The two strategies, their defaults and the names of their settings come from Apache Storm 2.
"""

from __future__ import annotations

import enum
import time
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Protocol, TypeAlias

from keygroups.arguments import Duration, check_count, check_duration, is_asynchronous, refusing_signature, seconds_of
from keygroups.errors import ConfigError


class WaitSituation(enum.Enum):
    """Why a thread waits."""

    SOURCE = "source"
    """Waits for input."""
    CONSUME = "consume"
    """Waits for outputs after the input has ended."""
    BACK_PRESSURE = "back_pressure"
    """Waits for room in a full operator."""


class Arrival(Protocol):
    """What a thread waits for; a `threading.Event` is one."""

    def wait(self, timeout: float, /) -> object:
        """Return when it has arrived, at the latest after so many seconds."""
        ...


class WaitStrategy(Protocol):
    """One short wait of a loop that waits until something has arrived. Stateless, so threads may share it.

    Any object with such a method is one. On Spark it is pickled and sent to the workers.

    Examples
    --------
    >>> import threading
    >>> class Doubling:
    ...     def idle(self, idle_count, arrival):
    ...         arrival.wait(min(0.1, 0.001 * 2**idle_count))
    ...         return min(idle_count + 1, 7)
    >>> WaitStrategies(source=Doubling()).source.idle(0, threading.Event())
    1
    """

    def idle(self, idle_count: int, arrival: Arrival) -> int:
        """Wait once.

        Parameters
        ----------
        idle_count : int
            How often this thread has waited in vain since the last arrival; 0 at first.
        arrival : Arrival
            Ends the wait early.

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
        check_duration("park_seconds", self.park_seconds)

    def idle(self, idle_count: int, arrival: Arrival) -> int:
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
            check_count(name, getattr(self, name), 0)
        check_duration("level3_sleep_seconds", self.level3_sleep_seconds)

    def idle(self, idle_count: int, arrival: Arrival) -> int:
        """Wait once, as `WaitStrategy.idle` says."""
        if idle_count < self.level1_count:
            return idle_count + 1
        if idle_count < self.level1_count + self.level2_count:
            time.sleep(0)
            return idle_count + 1
        arrival.wait(seconds_of(self.level3_sleep_seconds))
        return idle_count


_PARK = ParkWait(0.1)


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitStrategies:
    """The wait strategy of each situation.

    By default every thread parks, until what it waits for wakes it: one that spins takes the interpreter lock from the
    event loop that it waits for.

    Parameters
    ----------
    source : WaitStrategy
        How to wait for input.
    consume : WaitStrategy
        How to wait for outputs after the input has ended.
    back_pressure : WaitStrategy
        How to wait for room in a full operator.

    Examples
    --------
    >>> WaitStrategies(consume=ProgressiveWait(level2_count=100)).source
    ParkWait(park_seconds=0.1)
    """

    source: WaitStrategy = _PARK
    consume: WaitStrategy = _PARK
    back_pressure: WaitStrategy = _PARK

    def __post_init__(self) -> None:
        for one in fields(self):
            strategy = getattr(self, one.name)
            if isinstance(strategy, type) or not _takes_two(getattr(strategy, "idle", None)):
                reason = "pass a ParkWait, a ProgressiveWait, or an object with a method idle(idle_count, arrival)"
                raise ConfigError(one.name, strategy, reason)

    def of(self, situation: WaitSituation) -> WaitStrategy:
        """Return the strategy for a situation."""
        strategy: WaitStrategy = getattr(self, situation.value)
        return strategy


def _takes_two(idle: Any) -> bool:
    """Tell whether something can be called with a count and an arrival."""
    return callable(idle) and refusing_signature(idle, 0, None) is None and not is_asynchronous(idle)


WaitStrategiesOption: TypeAlias = WaitStrategies | Mapping[str, int | str]
"""What users pass: strategies, or settings with Storm's names."""


def as_wait_strategies(value: Any) -> WaitStrategies:
    """Return the strategies for what a user has passed: None, `WaitStrategies`, or a mapping with Storm's names.

    Raises
    ------
    ConfigError
        It is something else, or a setting is unknown or invalid.

    Examples
    --------
    >>> as_wait_strategies({"topology.bolt.wait.progressive.level2.count": 10}).consume
    ProgressiveWait(level1_count=1, level2_count=10, level3_sleep_seconds=0.001)
    """
    if value is None:
        return WaitStrategies()
    if isinstance(value, WaitStrategies):
        return value
    if not isinstance(value, Mapping):
        instead = "pass WaitStrategies(source=…, consume=…, back_pressure=…), or a dict with Storm's names"
        raise ConfigError("wait_strategies", value, instead)
    return _from_storm(value)


_STORMS = {"spout": "source", "bolt": "consume", "backpressure": "back_pressure"}
"""What Storm calls each situation."""

_LEVELS = (1, 1000, 1)
_SPOUT_LEVELS = (0, 0, 1)
"""Storm's defaults: counts of levels 1 and 2, milliseconds of level 3."""

_PARK_MICROSECONDS = 100


def _from_storm(settings: Mapping[Any, Any]) -> WaitStrategies:
    left = dict(settings)
    chosen = {}
    for storm, ours in _STORMS.items():
        prefix = f"topology.{storm}.wait."
        own = {name: left.pop(name) for name in settings if isinstance(name, str) and name.startswith(prefix)}
        if own:
            chosen[ours] = _strategy(prefix, own, _SPOUT_LEVELS if storm == "spout" else _LEVELS)
    if left:
        name, value = next(iter(left.items()))
        known = ", ".join(f"topology.{storm}.wait.…" for storm in _STORMS)
        raise ConfigError(str(name), value, f"this is no setting of a wait strategy; those begin with {known}")
    return WaitStrategies(**chosen)


def _strategy(prefix: str, own: dict[str, Any], defaults: tuple[int, int, int]) -> WaitStrategy:
    named = own.pop(prefix + "strategy", "WaitStrategyProgressive")
    kind = str(named).rpartition(".")[2]
    micros = _whole(own, prefix + "park.microsec", _PARK_MICROSECONDS)
    level1 = _whole(own, prefix + "progressive.level1.count", defaults[0])
    level2 = _whole(own, prefix + "progressive.level2.count", defaults[1])
    sleep = _whole(own, prefix + "progressive.level3.sleep.millis", defaults[2])
    if own:
        name, value = next(iter(own.items()))
        instead = "use strategy, park.microsec, or progressive.level1.count, .level2.count or .level3.sleep.millis"
        raise ConfigError(name, value, f"Storm has no such setting; after {prefix} {instead}")
    if kind == "WaitStrategyPark":
        return ParkWait(micros / 1e6)
    if kind == "WaitStrategyProgressive":
        return ProgressiveWait(level1, level2, sleep / 1e3)
    instead = "use org.apache.storm.policy.WaitStrategyPark or org.apache.storm.policy.WaitStrategyProgressive"
    raise ConfigError(prefix + "strategy", named, instead)


def _whole(own: dict[str, Any], name: str, default: int) -> int:
    value: int = own.pop(name, default)
    check_count(name, value, 0)
    return value
