"""How threads wait: parking, or spinning first and sleeping then."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from async_op.threads import wait_strategies as waiting
from async_op.threads.wait_strategies import ParkWait, ProgressiveWait, WaitSituation, WaitStrategies
from keygroups import ConfigError


class Waits(threading.Event):
    """An event that notes how long it was waited for, and does not wait."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[float | None] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.waits.append(timeout)
        return self.is_set()


@pytest.fixture
def yields(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What was slept without an event."""
    slept: list[float] = []
    monkeypatch.setattr(waiting.time, "sleep", slept.append)
    return slept


def test_parking_waits_for_the_same_time_each_time(yields: list[float]) -> None:
    arrival = Waits()
    count = 0
    for _ in range(3):
        count = ParkWait(0.5).idle(count, arrival)

    assert (arrival.waits, yields, count) == ([0.5] * 3, [], 3)


def test_parking_for_no_time_does_not_wait(yields: list[float]) -> None:
    arrival = Waits()

    assert ParkWait(0).idle(7, arrival) == 1
    assert (arrival.waits, yields) == ([], [])


def test_waiting_grows_in_three_levels(yields: list[float]) -> None:
    strategy = ProgressiveWait(level1_count=2, level2_count=3, level3_sleep_seconds=0.5)
    arrival = Waits()
    count, seen = 0, []
    for _ in range(8):
        count = strategy.idle(count, arrival)
        seen.append((count, len(yields), len(arrival.waits)))

    assert seen == [(1, 0, 0), (2, 0, 0), (3, 1, 0), (4, 2, 0), (5, 3, 0), (5, 3, 1), (5, 3, 2), (5, 3, 3)]
    assert arrival.waits == [0.5] * 3


def test_after_something_has_come_waiting_starts_from_the_first_level(yields: list[float]) -> None:
    strategy = ProgressiveWait(level1_count=1, level2_count=0, level3_sleep_seconds=0.5)
    arrival = Waits()
    count = strategy.idle(strategy.idle(0, arrival), arrival)
    assert len(arrival.waits) == 1

    assert strategy.idle(0, arrival) == 1
    assert (len(arrival.waits), count) == (1, 1)


@pytest.mark.parametrize(
    "strategy", [ParkWait(30), ProgressiveWait(level1_count=0, level2_count=0, level3_sleep_seconds=30)]
)
def test_what_arrives_ends_the_wait(strategy: Any) -> None:
    arrival = threading.Event()
    waiter = threading.Thread(target=strategy.idle, args=(0, arrival))
    waiter.start()
    arrival.set()
    waiter.join(10)

    assert not waiter.is_alive()


def test_the_defaults_are_those_of_storm() -> None:
    """Source: 1 ms at once; consume and back-pressure: one spin, a thousand yields, then 1 ms."""
    strategies = WaitStrategies()

    assert strategies.of(WaitSituation.SOURCE) == ProgressiveWait(level1_count=0, level2_count=0)
    assert strategies.of(WaitSituation.CONSUME) == ProgressiveWait(1, 1000, 1e-3)
    assert strategies.of(WaitSituation.BACK_PRESSURE) == ProgressiveWait(1, 1000, 1e-3)
    assert ParkWait() == ParkWait(100e-6)


def test_each_situation_may_have_a_strategy_of_its_own() -> None:
    strategies = WaitStrategies(back_pressure=ParkWait(0.25))

    assert strategies.of(WaitSituation.BACK_PRESSURE) == ParkWait(0.25)
    assert strategies.of(WaitSituation.CONSUME) == ProgressiveWait()


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (ParkWait, "park_seconds"),
        (ProgressiveWait, "level1_count"),
        (ProgressiveWait, "level2_count"),
        (ProgressiveWait, "level3_sleep_seconds"),
    ],
)
def test_negative_waits_are_refused(kind: Any, name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name}=-1"):
        kind(**{name: -1})
