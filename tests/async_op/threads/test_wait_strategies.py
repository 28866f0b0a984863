"""How threads wait: parking, or spinning first and sleeping then."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from async_op.threads import wait_strategies as waiting
from async_op.threads import waits as waiting_threads
from async_op.threads.wait_strategies import (
    ParkWait,
    ProgressiveWait,
    WaitSituation,
    WaitStrategies,
    as_wait_strategies,
)
from async_op.threads.waits import Waits
from keygroups import ConfigError


class Arrivals(threading.Event):
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
    # Not in the module of all: other threads of this process sleep, too.
    monkeypatch.setattr(waiting, "time", SimpleNamespace(sleep=slept.append))
    return slept


def test_parking_waits_for_the_same_time_each_time(yields: list[float]) -> None:
    arrival = Arrivals()
    count = 0
    for _ in range(3):
        count = ParkWait(0.5).idle(count, arrival)

    assert (arrival.waits, yields, count) == ([0.5] * 3, [], 3)


def test_parking_for_no_time_does_not_wait(yields: list[float]) -> None:
    arrival = Arrivals()

    assert ParkWait(0).idle(7, arrival) == 1
    assert (arrival.waits, yields) == ([], [])


def test_waiting_grows_in_three_levels(yields: list[float]) -> None:
    strategy = ProgressiveWait(level1_count=2, level2_count=3, level3_sleep_seconds=0.5)
    arrival = Arrivals()
    count, seen = 0, []
    for _ in range(8):
        count = strategy.idle(count, arrival)
        seen.append((count, len(yields), len(arrival.waits)))

    assert seen == [(1, 0, 0), (2, 0, 0), (3, 1, 0), (4, 2, 0), (5, 3, 0), (5, 3, 1), (5, 3, 2), (5, 3, 3)]
    assert arrival.waits == [0.5] * 3


def test_after_something_has_come_waiting_starts_from_the_first_level(yields: list[float]) -> None:
    strategy = ProgressiveWait(level1_count=1, level2_count=0, level3_sleep_seconds=0.5)
    arrival = Arrivals()
    count = strategy.idle(strategy.idle(0, arrival), arrival)
    assert len(arrival.waits) == 1

    assert strategy.idle(0, arrival) == 1
    assert (len(arrival.waits), count) == (1, 1)


@pytest.mark.parametrize(
    "strategy", [ParkWait(3600), ProgressiveWait(level1_count=0, level2_count=0, level3_sleep_seconds=3600)]
)
def test_what_arrives_ends_the_wait(strategy: Any) -> None:
    arrival = threading.Event()
    waiter = threading.Thread(target=strategy.idle, args=(0, arrival))
    waiter.start()
    arrival.set()
    waiter.join(600)

    assert not waiter.is_alive()


def test_each_situation_may_have_a_strategy_of_its_own() -> None:
    strategies = WaitStrategies(back_pressure=ParkWait(0.25))

    assert strategies.of(WaitSituation.BACK_PRESSURE) == ParkWait(0.25)
    assert strategies.of(WaitSituation.CONSUME) == strategies.of(WaitSituation.SOURCE) == ParkWait(0.1)


STORM = "org.apache.storm.policy.WaitStrategy"


def test_the_defaults_of_storms_settings_are_storms() -> None:
    """Source: 1 ms at once; consume and back-pressure: one spin, a thousand yields, then 1 ms."""
    strategies = as_wait_strategies(
        {f"topology.{name}.wait.strategy": STORM + "Progressive" for name in ("spout", "bolt", "backpressure")}
    )

    assert strategies.source == ProgressiveWait(level1_count=0, level2_count=0)
    assert strategies.consume == strategies.back_pressure == ProgressiveWait(1, 1000, 1e-3)
    assert as_wait_strategies({"topology.bolt.wait.strategy": STORM + "Park"}).consume == ParkWait(100e-6)


def test_storms_settings_are_understood() -> None:
    strategies = as_wait_strategies(
        {
            "topology.spout.wait.strategy": STORM + "Park",
            "topology.spout.wait.park.microsec": 250,
            "topology.bolt.wait.progressive.level1.count": 7,
            "topology.bolt.wait.progressive.level2.count": 0,
            "topology.bolt.wait.progressive.level3.sleep.millis": 20,
        }
    )

    assert strategies == WaitStrategies(source=ParkWait(250e-6), consume=ProgressiveWait(7, 0, 20e-3))


@pytest.mark.parametrize(
    ("value", "named"),
    [
        (ParkWait(), "wait_strategies"),
        ("park", "wait_strategies"),
        ({"topology.disruptor.wait.timeout.millis": 1}, "topology.disruptor.wait.timeout.millis"),
        ({"topology.bolt.wait.progressive.level4.count": 1}, "topology.bolt.wait.progressive.level4.count"),
        ({"topology.bolt.wait.strategy": "Sleep"}, "topology.bolt.wait.strategy"),
        ({"topology.bolt.wait.park.microsec": "100"}, "topology.bolt.wait.park.microsec"),
        ({"topology.bolt.wait.progressive.level1.count": -1}, "topology.bolt.wait.progressive.level1.count"),
    ],
    ids=range(7),
)
def test_what_is_no_setting_is_refused_by_its_name(value: Any, named: str) -> None:
    with pytest.raises(ConfigError) as refused:
        as_wait_strategies(value)
    assert refused.value.name == named


@pytest.mark.parametrize("situation", WaitSituation)
@pytest.mark.parametrize(
    "value", [None, 5, ParkWait, SimpleNamespace(idle=lambda count: count)], ids=["nothing", "number", "class", "arity"]
)
def test_what_is_no_strategy_is_refused_by_its_situation(situation: WaitSituation, value: Any) -> None:
    with pytest.raises(ConfigError) as refused:
        WaitStrategies(**{situation.value: value})
    assert refused.value.name == situation.value


def test_waiting_is_counted_by_its_reason_which_may_change_in_the_meantime() -> None:
    reasons = [WaitSituation.SOURCE, WaitSituation.BACK_PRESSURE]
    seen: list[WaitSituation] = []

    class Noted:
        def __init__(self, situation: WaitSituation) -> None:
            self._situation = situation

        def idle(self, idle_count: int, arrival: Any) -> int:
            seen.append(self._situation)
            return idle_count

    waits = Waits(WaitStrategies(**{one.value: Noted(one) for one in WaitSituation}))
    waits.until(lambda: not reasons, threading.Event(), lambda: reasons.pop(0))
    assert seen == [WaitSituation.SOURCE, WaitSituation.BACK_PRESSURE]
    assert waits.seconds[WaitSituation.CONSUME] == 0
    waits.count(WaitSituation.CONSUME, 2.0)
    assert waits.seconds[WaitSituation.CONSUME] == 2.0


def test_a_wait_that_is_bounded_waits_no_longer_at_once() -> None:
    arrival = Arrivals()
    waits = Waits(WaitStrategies(consume=ParkWait(3600)))
    waits.until(lambda: arrival.waits, arrival, lambda: WaitSituation.CONSUME, at_most=5.0)
    assert arrival.waits == [5.0]

    waits.until(lambda: False, arrival, lambda: WaitSituation.CONSUME, at_most=0.0)
    assert arrival.waits == [5.0]


def test_the_time_that_a_source_takes_is_counted_also_if_it_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0

    def source() -> Iterator[int]:
        nonlocal now
        for number in range(3):
            now += 1.0
            yield number
        now += 1.0
        raise OSError("the source is away")

    monkeypatch.setattr(waiting_threads, "time", SimpleNamespace(monotonic=lambda: now))
    waits, read = Waits(WaitStrategies()), []
    with pytest.raises(OSError, match="the source is away"):
        for number in waits.reading(source()):
            read.append(number)
            now += 10.0

    assert read == [0, 1, 2] == list(waits.reading([0, 1, 2]))
    assert waits.seconds[WaitSituation.SOURCE] == 4.0


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


class Noting:
    """A user's own strategy: it notes the counts that it gets, and each wait takes a tenth of a second."""

    def __init__(self, clock: SimpleNamespace) -> None:
        self.counts: list[int] = []
        self._clock = clock

    def idle(self, idle_count: int, arrival: Any) -> int:
        self.counts.append(idle_count)
        self._clock.now += 0.1
        return idle_count + 1


@pytest.fixture
def noting(monkeypatch: pytest.MonkeyPatch) -> Noting:
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(waiting_threads, "time", SimpleNamespace(monotonic=lambda: clock.now))
    return Noting(clock)


def test_the_count_starts_again_when_the_situation_ends_and_not_when_a_single_wait_does(noting: Noting) -> None:
    waits = Waits(WaitStrategies(source=noting, consume=noting, back_pressure=noting))
    wait = lambda situation, is_over=lambda: False: waits.until(is_over, Arrivals(), lambda: situation, 0.25)  # noqa: E731
    wait(WaitSituation.CONSUME)
    wait(WaitSituation.CONSUME)
    assert noting.counts == [0, 1, 2, 3, 4, 5]
    assert waits.streak == 6
    wait(WaitSituation.BACK_PRESSURE)
    assert noting.counts[6:] == [0, 1, 2], "it waits for something else"
    wait(WaitSituation.BACK_PRESSURE, lambda: True)
    assert waits.streak == 0
    wait(WaitSituation.BACK_PRESSURE)
    assert noting.counts[9:] == [0, 1, 2], "something had come"
    assert waits.longest == {WaitSituation.SOURCE: 0, WaitSituation.CONSUME: 6, WaitSituation.BACK_PRESSURE: 3}


def test_entering_and_leaving_back_pressure_is_in_the_log(noting: Noting, caplog: pytest.LogCaptureFixture) -> None:
    waits = Waits(WaitStrategies(consume=noting, back_pressure=noting))
    with caplog.at_level("DEBUG", waiting_threads.__name__):
        for _ in range(2):
            waits.until(lambda: False, Arrivals(), lambda: WaitSituation.BACK_PRESSURE, 0.25)
        waits.until(lambda: True, Arrivals(), lambda: WaitSituation.BACK_PRESSURE, 0.25)
    assert [text for _, _, text in caplog.record_tuples] == [
        "back-pressure begins: the operator takes in no more elements",
        "back-pressure has ended after 0.600 s and 6 waits",
    ]


class Counting:
    """A strategy of the source that waits until something comes, and counts how often it was asked."""

    def __init__(self) -> None:
        self.asked = 0

    def idle(self, idle_count: int, arrival: Any) -> int:
        self.asked += 1
        arrival.wait(60.0)
        return idle_count + 1


def test_a_strategy_for_the_source_waits_for_each_of_its_elements_and_gets_its_error() -> None:
    asked = threading.Semaphore(0)

    def source() -> Iterator[int]:
        for number in range(3):
            asked.acquire()  # it comes only once somebody waits
            yield number
        raise OSError("the source is away")

    class Late(Counting):
        def idle(self, idle_count: int, arrival: Any) -> int:
            asked.release()
            return super().idle(idle_count, arrival)

    late = Late()
    waits = Waits(WaitStrategies(source=late))
    read: list[int] = []
    with pytest.raises(OSError, match="the source is away"):
        read.extend(waits.reading(source()))
    assert read == [0, 1, 2]
    assert late.asked >= 3
    assert waits.longest[WaitSituation.SOURCE] >= 1
    assert waits.seconds[WaitSituation.SOURCE] > 0


def test_a_source_that_is_left_is_read_no_further() -> None:
    read = []

    def source() -> Iterator[int]:
        for number in range(100):
            read.append(number)
            yield number

    waits = Waits(WaitStrategies(source=Counting()))
    reading = waits.reading(source())
    assert next(reading) == 0
    reading.close()
    assert len(read) <= 3
