"""The entry points without Spark, and what comes out of each for a rule."""

from __future__ import annotations

import asyncio
import logging
import traceback
import warnings
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from async_op import AsyncDataStream, Job, Step, letter_value
from async_op.connectors import Source
from async_op.dead_letters import row_of
from async_op.epochs import restarts
from async_op.hosting import messages as say
from async_op.operator.key_columns import key_getter
from async_op.testing import VirtualLoop
from snapshots import SnapshotStore
from tests.async_op.job.kit import Epochs
from tests.async_op.job.virtual_job_loop import VirtualJobLoop
from tests.doors.restart_rules import NAME, Attempt, RestartRule, options_of
from tests.doors.rules import (
    HOST,
    JOB,
    PROCESSES,
    STORED_STREAM,
    STREAM,
    Element,
    Letter,
    Rule,
    default_options,
    elements_of,
    timestamp_of,
)
from tests.hosting.virtual_host import Kit, Run, hosted, outputs
from tests.simulation.abandon import run_alone


@dataclass
class Seen:
    """What came out: texts of outputs in their order, dead letters, and the error with all that led to it."""

    says: list[str] = field(default_factory=list)
    letters: list[Letter] = field(default_factory=list)
    error: str | None = None


def letter_of(row: Any) -> Letter:
    """Return what is compared of the row of a dead letter."""
    return letter_value(row)["id"], row["attempts"], row["error_type"]


def check(rule: Rule, seen: Seen) -> None:
    """Fail unless a rule has held."""
    if rule.error:
        assert seen.error is not None, f"it ended well, with {seen}"
        assert [part for part in rule.error if part not in seen.error] == [], seen.error
        return
    assert seen.error is None, seen.error
    assert rule.says is None or seen.says == list(rule.says)
    assert seen.letters == list(rule.letters)


def tried(run: Callable[[Seen], object]) -> Seen:
    """Return what a run has shown, its error as text."""
    seen = Seen()
    try:
        run(seen)
    except Exception as error:  # noqa: BLE001 - it is looked at
        seen.error = "".join(traceback.format_exception(error))
    return seen


def in_time_of(rule: Rule, loop: VirtualLoop, work: Coroutine[Any, Any, object]) -> None:
    """Run in virtual time, where the rule allows that."""
    if rule.blocks:
        loop.close()
        asyncio.run(work)
    else:
        run_alone(loop, work)


def _texts(rows: Sequence[Any]) -> list[str]:
    return [row["said"] for row in rows]


def stream(rule: Rule, folder: Path) -> Seen:
    """Try a stream in this process."""
    return tried(lambda seen: in_time_of(rule, VirtualLoop(), _streamed(rule, seen, None)))


def stored_stream(rule: Rule, folder: Path) -> Seen:
    """Try a stream with snapshots."""
    return tried(lambda seen: in_time_of(rule, VirtualJobLoop(), _streamed(rule, seen, folder)))


async def _streamed(rule: Rule, seen: Seen, snapshots: Path | None) -> None:
    options, letters = default_options(rule), Epochs()
    call = getattr(AsyncDataStream, f"{options.pop('mode')}_wait")
    if options.get("on_error") == "dead_letter":
        options["dead_letters"] = (
            (lambda letter: seen.letters.append(letter_of(row_of(letter)))) if snapshots is None else letters
        )
    if rule.has_event_time:
        options["timestamps"] = timestamp_of
    if snapshots is not None:
        options |= {"snapshots": snapshots, "job_id": "rule"}
    async for row in call(rule.elements, rule.function(), **options):
        seen.says.append(row["said"])
    seen.letters += map(letter_of, letters.values)


class Timed(Source[Element]):
    """Elements with timestamps."""

    bounded = True

    def __init__(self, elements: list[Element]) -> None:
        self.elements = elements

    def partitions(self) -> list[int]:
        return [0]

    def read(self, partition: Any, position: Any) -> Iterator[Any]:
        for element in self.elements[position or 0 :]:
            yield element, timestamp_of(element), element["id"] + 1


def job(rule: Rule, folder: Path) -> Seen:
    """Try a job whose steps run beside it."""
    return tried(lambda seen: in_time_of(rule, VirtualJobLoop(), _worked(rule, seen, folder)))


def job_with_processes(rule: Rule, folder: Path) -> Seen:
    """Try a job whose steps run in a worker process."""
    return tried(lambda seen: asyncio.run(_worked(rule, seen, folder, processes=1)))


async def _worked(rule: Rule, seen: Seen, folder: Path, **options: Any) -> None:
    sink, letters = Epochs(), Epochs()
    step = Step(rule.function(), "rule", **default_options(rule))
    options |= {"dead_letters": letters, "parallelism": 1, "snapshot_interval": 0.1}
    if rule.has_event_time:
        options["watermark_delay"] = 0
    source = Timed(rule.elements) if rule.has_event_time else rule.elements
    await Job(source, step, sink, snapshots=folder, job_id="job", **options).run()
    seen.says += _texts(sink.values)
    seen.letters += map(letter_of, letters.values)


def host(rule: Rule, folder: Path) -> Seen:
    """Try the host of a pipeline's subtask."""
    return tried(lambda seen: _hosted(rule, seen))


def _hosted(rule: Rule, seen: Seen) -> None:
    options = default_options(rule)
    if options.get("on_error") == "dead_letter":
        options["dead_letters"] = lambda letter: seen.letters.append(letter_of(row_of(letter)))
    options["key_by"] = key_getter(options["key_by"])

    async def test(run: Run) -> None:
        reached = say.FeedWatermark(timestamp_of(rule.elements[-1]))
        for rows in (say.Feed(rule.elements), reached if rule.has_event_time else say.Feed([])):
            for message in (run.greeting(), rows, say.Settle()):
                reply = await run.host.answer(run.feeder, message)
                if isinstance(reply, say.Failed):
                    raise reply.error
            seen.says += _texts(outputs(await run.cut()))
            await asyncio.sleep(1)  # timers become due, for which there is an epoch without input

    hosted(test, (TimedKit if rule.has_event_time else Kit)(function=rule.function(), options=options))


class TimedKit(Kit):
    """Gives rows their timestamps."""

    def decoder(self, epoch: Any) -> Callable[[Any], Iterable[Any]]:
        return lambda rows: [(row, timestamp_of(row), f"{epoch}-{row['id']}") for row in rows]


LOCAL: dict[str, Callable[[Rule, Path], Seen]] = {
    STREAM: stream,
    STORED_STREAM: stored_stream,
    JOB: job,
    PROCESSES: job_with_processes,
    HOST: host,
}
"""The entry points without Spark, and what is behind a pipeline."""


# Restarts.


@contextmanager
def restarts_told() -> Iterator[list[float]]:
    """Give the delays of the restarts that the log tells of."""
    delays: list[float] = []
    log, told = logging.getLogger(restarts.__name__), logging.Handler()
    told.emit = lambda record: delays.append(record.args[1])  # type: ignore[method-assign, index, misc]
    log.addHandler(told)
    try:
        yield delays
    finally:
        log.removeHandler(told)


def check_restarts(rule: RestartRule, folder: Path, run: Callable[[Attempt, Seen, Path], object]) -> None:
    """Make the runs of a rule, and fail unless it has held."""
    says: list[str] = []
    for attempt in rule.runs:
        if attempt.before is not None:
            attempt.before(SnapshotStore(folder, NAME))
        with warnings.catch_warnings(record=True) as warned, restarts_told() as delays:
            warnings.simplefilter("always")
            seen = tried(lambda seen, attempt=attempt: run(attempt, seen, folder))  # type: ignore[misc]
        assert (seen.error is None) == (not attempt.error), seen.error
        assert [part for part in attempt.error if part not in str(seen.error)] == [], seen.error
        expected = [] if attempt.warning is None else [attempt.warning]
        assert [one.category.__name__ for one in warned if one.category.__module__.startswith("async_op")] == expected
        assert delays == list(attempt.delays)
        if attempt.after is not None:
            attempt.after(SnapshotStore(folder, NAME))
        says += seen.says
    assert sorted(says) == sorted(rule.says)


def restarted_stream(attempt: Attempt, seen: Seen, folder: Path) -> None:
    """Run a stream with snapshots."""

    async def work() -> None:
        _, options = options_of(attempt)
        call = getattr(AsyncDataStream, f"{options.pop('mode')}_wait")
        elements, function = elements_of(attempt.keys), attempt.function(folder)
        async for row in call(elements, function, snapshots=folder, job_id=NAME, **options):
            seen.says.append(row["said"])

    run_alone(VirtualJobLoop(), work())


def restarted_job(attempt: Attempt, seen: Seen, folder: Path) -> None:
    """Run a job beside its steps."""
    run_alone(VirtualJobLoop(), _restarted(attempt, seen, folder))


def restarted_processes(attempt: Attempt, seen: Seen, folder: Path) -> None:
    """Run a job whose steps are in a worker process."""
    asyncio.run(_restarted(attempt, seen, folder, processes=1))


async def _restarted(attempt: Attempt, seen: Seen, folder: Path, **more: Any) -> None:
    placed, options = options_of(attempt)
    sink, step = Epochs(), Step(attempt.function(folder), NAME, **options)
    try:
        more |= {"snapshots": folder, "job_id": NAME, "restart": attempt.restart}
        await Job(elements_of(attempt.keys), step, sink, **placed, **more).run()
    finally:
        seen.says += _texts(sink.values)


LOCAL_RESTARTS: dict[str, Callable[[Attempt, Seen, Path], None]] = {
    STORED_STREAM: restarted_stream,
    JOB: restarted_job,
    PROCESSES: restarted_processes,
}
"""The entry points with snapshots and without Spark."""
