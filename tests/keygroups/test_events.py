"""What happens is told in one line of the log, with its facts as fields, and to whoever listens."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from keygroups.events import Event, listen, publish
from snapshots import CommitConflict
from tests.snapshot_kit import new_store, parts


@pytest.fixture
def heard() -> Iterator[list[Event]]:
    events: list[Event] = []
    stop = listen(events.append)
    yield events
    stop()


def lines_of(caplog: pytest.LogCaptureFixture, event: str) -> list[Any]:
    return [record for record in caplog.records if getattr(record, "event", None) == event]


def test_a_snapshot_is_one_line_with_its_facts(heard: list[Event], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    snapshot = new_store().write(parts({"count": {"a": 1}}))

    (line,) = caplog.records
    assert (line.name, line.event, line.version, line.parallelism, line.in_flight) == ("snapshots", "snapshot", 1, 2, 0)
    assert line.bytes == sum(file.bytes for file in snapshot.manifest.files) > 0
    assert line.operator_id == snapshot.manifest.operator_id
    assert "version=1" in line.getMessage()
    assert [(event.name, event.error) for event in heard] == [("write", None), ("write", None), ("snapshot", None)]


def test_a_rescale_is_one_line_more(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    store = new_store()
    store.write(parts({"count": {"a": 1}}))
    store.repartition(3)
    store.write(parts({"count": {"a": 1}}, parallelism=3))
    store.write(parts({"count": {"a": 1}}, parallelism=4))

    changes = [(line.from_parallelism, line.parallelism, line.version) for line in lines_of(caplog, "rescale")]
    assert changes == [(2, 3, 2), (3, 4, 4)]
    assert len(lines_of(caplog, "snapshot")) == 3


def test_a_failed_snapshot_is_a_warning(heard: list[Event], caplog: pytest.LogCaptureFixture) -> None:
    store = new_store()
    pending = store.begin()
    handles = [pending.write_subtask(part) for part in parts({"count": {"a": 1}})]
    pending.commit(handles)
    with pytest.raises(CommitConflict):
        pending.commit(handles)

    assert [(line.levelname, line.error) for line in lines_of(caplog, "snapshot")] == [("WARNING", "CommitConflict")]
    assert heard[-1].error == "CommitConflict"


@pytest.mark.parametrize("error", [ValueError, asyncio.CancelledError, GeneratorExit])
def test_a_listener_that_fails_affects_no_other(
    heard: list[Event], caplog: pytest.LogCaptureFixture, error: type[BaseException]
) -> None:
    def fail(event: Event) -> None:
        raise error(event.name)

    stop = listen(fail)
    publish(Event("restore", 0.0))
    stop()
    publish(Event("restore", 0.0))

    assert len(heard) == 2
    assert [record.levelname for record in caplog.records] == ["ERROR"]


def test_nothing_is_written_unless_asked_for() -> None:
    program = (
        "import logging, async_op, snapshots, keygroups;"
        "[logging.getLogger(name).warning('heard') for name in ('async_op.x', 'snapshots.x', 'keygroups.x')]"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert (ended.stdout, ended.stderr) == ("", "")
