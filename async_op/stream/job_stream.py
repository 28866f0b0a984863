"""A stream with snapshots: a job of one step, whose outputs wait for the consumer."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from os import PathLike
from typing import Any

from async_op.cancellation import to_the_end
from async_op.connectors.sink import Sink
from async_op.job.adapters import IterableSource, source_of
from async_op.job.errors import JobNotRunning
from async_op.job.job import Job
from async_op.job.step import Step
from async_op.stream.timestamps import TimestampsBy, timestamps_of
from keygroups.arguments import Duration, check_instance
from keygroups.errors import ConfigError

_log = logging.getLogger(__package__)

STEP = "stream"
"""The name of the step. It is not the function's, so that another function may go on from the snapshots."""


class _HandOver(Sink[Any]):
    """Hands committed epochs to the consumer; an epoch is written once the consumer has taken all of it."""

    def __init__(self) -> None:
        self.epochs = asyncio.Queue[list[Any] | None]()
        """At most one epoch at a time, and None at the end of the job."""

    async def write(self, values: list[Any], epoch: int) -> None:
        """Wait until the outputs are taken, so the job goes no faster than the consumer."""
        self.epochs.put_nowait(values)
        await self.epochs.join()


def job_outputs(
    stream: Any,
    step: Step,
    *,
    snapshots: str | PathLike[str] | None,
    job_id: str | None,
    dead_letters: Sink[Any] | None,
    timestamps: TimestampsBy | None,
    watermark_delay: Duration | None,
) -> AsyncGenerator[Any, None]:
    """Return the outputs of a job of one step, which begins with the iteration.

    Raises
    ------
    ConfigError
        An argument is invalid, or only one of `snapshots` and `job_id` was given.
    """
    if snapshots is None or job_id is None:
        missing = "snapshots" if snapshots is None else "job_id"
        raise ConfigError(missing, None, "snapshots need a folder and a name in it: pass `snapshots` and `job_id`")
    reason = "with `snapshots` it gets the dead letters of an epoch: pass a Sink"
    check_instance("dead_letters", dead_letters, (Sink, type(None)), reason=reason)
    source, sink = source_of(stream), _HandOver()
    if isinstance(source, IterableSource):
        if (times := timestamps_of(timestamps, watermark_delay)) is not None:
            source.element_of, watermark_delay = times.element, watermark_delay or 0
    elif timestamps is not None:
        raise ConfigError("timestamps", timestamps, "a Source gives its elements their timestamps: leave it out")
    job = Job(
        source,
        step,
        sink,
        snapshots=snapshots,
        job_id=job_id,
        dead_letters=dead_letters,
        watermark_delay=watermark_delay,
        parallelism=1,  # whatever the snapshot says: several subtasks would not keep the order
    )
    return _run(job, sink.epochs)


async def _run(job: Job, epochs: asyncio.Queue[list[Any] | None]) -> AsyncGenerator[Any, None]:
    """Run a job and yield its outputs; stops it however the iteration ends."""
    running = asyncio.create_task(job.run(), name="keygroups job")
    running.add_done_callback(lambda _: epochs.put_nowait(None))
    try:
        while (values := await epochs.get()) is not None:
            for value in values:
                yield value
            epochs.task_done()
    except BaseException:
        await to_the_end(asyncio.ensure_future(_stop(job, running)))
        raise
    await running


async def _stop(job: Job, running: asyncio.Task[None]) -> None:
    """Stop a job at a cut, and leave the epoch that is being taken to the next run."""
    try:
        job.stop(drain=False)
        while True:
            await job.snapshot()
    except JobNotRunning:  # no snapshot follows the last cut: now the job waits for the consumer, who has left
        running.cancel()
    except Exception:  # noqa: BLE001, S110 - it ends the job, too
        pass
    (error,) = await asyncio.gather(running, return_exceptions=True)
    if isinstance(error, Exception):
        _log.error("a job failed while its outputs were no longer taken", exc_info=error)
