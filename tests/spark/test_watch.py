"""What can be seen of an epoch before it has ended."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from async_op.epochs import long_waits
from async_op.hosting.messages import Status
from async_op.spark.epoch import log
from async_op.spark.epoch.log import EpochWatch
from snapshots.format.epoch_under_way import EpochUnderWay, under_way_in
from tests.snapshot_kit import new_store


class Looks:
    """A watch that looks at once, again and again, at hosts that are given; a test waits for what it sees."""

    def __init__(self) -> None:
        self.statuses: list[Status] = []
        self.store = new_store()
        self.watch = EpochWatch(self.store, self)  # type: ignore[arg-type]  # as a fleet
        self._looked = threading.Condition()
        self.looks = 0

    def look(self) -> list[Status]:
        with self._looked:
            self.looks += 1
            self._looked.notify_all()
        return self.statuses

    def wait(self, looks: int = 2) -> None:
        """Wait until what is given now has been seen: the look under way may have asked before."""
        with self._looked:
            until = self.looks + looks
            assert self._looked.wait_for(lambda: self.looks >= until, 60)


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Iterator[Looks]:
    monkeypatch.setattr(log, "_LOOK_SECONDS", 0.001)
    yield Looks()
    for thread in threading.enumerate():
        if thread.name == "keygroups watch":
            thread.join(60)  # what it logs would be found by the next test


def test_an_epoch_is_seen_while_it_is_under_way_and_gone_after_it(looks: Looks) -> None:
    looks.statuses = [Status(in_flight=3, waiting=2, calls=7, oldest_call_seconds=4.0), Status(in_flight=1, calls=1)]
    with looks.watch.epoch(5, 3):
        looks.wait()
        found = looks.watch.under_way
        assert found is not None
        assert (found.epoch, found.hosts, found.parallelism, found.in_flight, found.waiting) == (5, 2, 3, 4, 2)
        assert (found.calls, found.oldest_call_seconds, found.phase) == (8, 4.0, "subtasks")
        noted = under_way_in(looks.store.folder, found.at)
        assert noted is not None
        assert noted.epoch == 5
        looks.watch.enter("sink")
        looks.wait()
        assert looks.watch.under_way.phase == "sink"  # type: ignore[union-attr]
    assert looks.watch.under_way is None
    assert under_way_in(looks.store.folder, found.at) is None


def test_the_log_says_what_a_long_epoch_waits_for_and_again_when_the_time_has_doubled(
    looks: Looks, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    looks.statuses = [Status(in_flight=3, oldest_call_seconds=4.0)]
    with looks.watch.epoch(1, 2):
        looks.wait(5)
    assert caplog.text == "", "it was short"
    monkeypatch.setattr(long_waits, "LONG_SECONDS", 0.1)
    with looks.watch.epoch(1, 2):
        until = time.monotonic() + 60
        while len(caplog.records) < 3 and time.monotonic() < until:
            looks.wait()
    told = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert 3 <= len(told) < looks.looks
    for text in told:
        assert "enrich: epoch 1 has been under way for " in text
        assert "s and waits for calls: 3 in flight, the oldest for 4.0 s" in text


def test_hosts_that_cannot_be_asked_fail_no_epoch(looks: Looks, caplog: pytest.LogCaptureFixture) -> None:
    asked = threading.Event()

    def fail() -> list[Status]:
        asked.set()
        raise OSError("no network")

    looks.look = fail  # type: ignore[method-assign]
    with looks.watch.epoch(1, 2):
        assert asked.wait(60)
    assert looks.watch.under_way is None


def under_way(**changed: object) -> EpochUnderWay:
    common = {"epoch": 2, "at": 100.0, "seconds": 31.0, "phase": "subtasks", "parallelism": 2}
    return EpochUnderWay(**(common | changed))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("found", "waits_for"),
    [
        (under_way(phase="commit"), "waits for the storage of its manifest"),
        (under_way(phase="sink"), "waits for its sink"),
        (under_way(), "waits for its tasks: no host answers"),
        (under_way(hosts=2), "waits for rows: nothing is in flight, 0.0 calls/s; 2 of 2 hosts answer"),
        (under_way(hosts=1, in_flight=5, waiting=1200), "calls: 5 in flight, 1,200 more wait for room, the oldest"),
    ],
)
def test_an_epoch_says_what_it_waits_for(found: EpochUnderWay, waits_for: str) -> None:
    assert waits_for in str(found)


def test_calls_per_second_are_those_between_two_looks() -> None:
    look = log._Look(1, 2, 10.0)
    ask: Callable[..., EpochUnderWay] = lambda calls, now: look.at([Status(calls=calls)], "subtasks", now)  # noqa: E731
    assert ask(50, 13.0).calls_per_second == 0.0, "nothing is known before the first look"
    assert ask(80, 16.0).calls_per_second == 10.0
    assert ask(5, 19.0).calls_per_second == 0.0, "a host was replaced"
