"""One run of the soak of a job: a parent with two children. The soak kills them at random moments.

It tells about each delivered epoch on stdout, with what the processes hold at that moment.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from async_op import AsyncFunction, Job, RestartPolicy, Retention, Step
from async_op.connectors import KafkaSource
from async_op.job.errors import JobNotRunning
from benchmarks._soak_service import (
    RESILIENCE,
    RETRY,
    TIMEOUT_SECONDS,
    Lookup,
    entries,
    files_below,
    resident_mb,
    write_epoch,
)
from keygroups import ValueState

TOPIC = "rows"
JOB_ID = "soak"
GROUPS = 7
_PROCESSES = 2
_MAX_PARALLELISM = 32
_INTERVAL_SECONDS = 0.5
_RESCALE_EVERY = 10
_KILL_EVERY = 17
_LAST_EPOCHS = 5
_PLACE = ValueState("place", pa.int64(), default=0)


@dataclass(frozen=True)
class JobSettings:
    """What a run is told.

    Attributes
    ----------
    folder : str
        Where everything is that outlives a run.
    servers : str
        The brokers.
    parallelism : int
        That it begins with.
    epochs : int
        After so many it stops by itself.
    is_last : bool
        Read to the end of the topic, and finish what is in flight.
    """

    folder: str
    servers: str
    parallelism: int
    epochs: int
    is_last: bool


def group_of(row: int) -> int:
    """Return the key of a row in the second step."""
    return row % GROUPS


def key_of_record(record: dict[str, Any]) -> str:
    """Return the key of a record in the first step."""
    return record["key"].decode()  # type: ignore[no-any-return]


def key_of_counted(counted: tuple[int, str, int | None]) -> int:
    """Return the key of what the first step puts out."""
    return group_of(counted[0])


class LookupRecords(Lookup):
    """The first step."""

    async def async_invoke(self, value: dict[str, Any], ctx: Any) -> list[Any]:
        """Look up the row of a record."""
        return await super().async_invoke(_row_of(value), ctx)

    async def timeout(self, value: dict[str, Any], ctx: Any) -> list[Any]:
        """Put out the row of a record without a number."""
        return await super().timeout(_row_of(value), ctx)


def _row_of(record: dict[str, Any]) -> dict[str, Any]:
    return {"id": json.loads(record["value"]), "user": key_of_record(record)}


class Placing(AsyncFunction):
    """The second step: adds to each row its place among the rows of its group."""

    states = (_PLACE,)

    async def async_invoke(self, value: tuple[int, str, int | None], ctx: Any) -> list[Any]:
        """Count the row."""
        place = ctx.state(_PLACE)
        place.update(place.value() + 1)
        return [[*value, place.value()]]


class Table:
    """Replaces the table's part of an epoch, and tells about it; rescales and kills a child now and then."""

    def __init__(self, settings: JobSettings) -> None:
        self.job: Job
        self._settings = settings
        self._folder = Path(settings.folder)
        self._delivered = self._since_kill = 0

    def __call__(self, values: list[Any], epoch: int) -> None:
        """Write an epoch."""
        write_epoch(self._folder, epoch, values)
        if epoch % _RESCALE_EVERY == 0:
            with suppress(JobNotRunning):  # it ends
                self.job.rescale(1 + epoch // _RESCALE_EVERY % 4)
        # Not by the number of the epoch: those without outputs do not come here. Not shortly before a stop either: a
        # failure of a job that stops is raised, whatever its policy.
        self._since_kill += 1
        is_to_kill = self._since_kill >= _KILL_EVERY and self._delivered < self._settings.epochs - _LAST_EPOCHS
        events = self._kill_child(epoch) if is_to_kill else []
        sys.stdout.write(json.dumps({"epoch": epoch, "rows": len(values), "events": events} | self._sample()) + "\n")
        sys.stdout.flush()
        self._delivered += 1
        if self._delivered >= self._settings.epochs and not self._settings.is_last:
            self.job.stop(drain=False)

    def _kill_child(self, epoch: int) -> list[str]:
        children = [child for child in self.job.progress().children if child.pid]
        if not children:
            return []
        self._since_kill = 0
        child = children[epoch % len(children)]
        with suppress(ProcessLookupError):
            os.kill(child.pid, signal.SIGKILL)
        return ["child killed"]

    def _sample(self) -> dict[str, Any]:
        progress = self.job.progress()
        pids = [child.pid for child in progress.children if child.pid]
        found = {
            "parallelism": progress.parallelism,
            "pids": pids,
            "in flight": sum(progress.in_flight.values()),
            "restarts": progress.restarts,
            "parent, MB": resident_mb(os.getpid()),
            "threads": threading.active_count(),
            "open files": entries(f"/proc/{os.getpid()}/fd"),
            "files of snapshots": files_below(self._folder / "snapshots"),
        }
        return found | _sample_of_children(pids) if pids else found  # an epoch may come before they have started


def _sample_of_children(pids: list[int]) -> dict[str, float]:
    return {
        "children": sum(bool(resident_mb(pid)) for pid in pids),
        "largest child, MB": max(map(resident_mb, pids)),
        "open files of a child": max(entries(f"/proc/{pid}/fd") for pid in pids),
        "threads of a child": max(entries(f"/proc/{pid}/task") for pid in pids),
    }


def run(settings: JobSettings) -> None:
    """Go on where the run before has ended."""
    folder = Path(settings.folder)
    table = Table(settings)
    lookup = Step(
        LookupRecords(folder / "calls"),
        "lookup",
        key_by=key_of_record,
        timeout=TIMEOUT_SECONDS,
        retry=RETRY,
        resilience=RESILIENCE,
    )
    table.job = Job(
        KafkaSource(TOPIC, {"bootstrap.servers": settings.servers, "log_level": 0}, bounded=settings.is_last),
        [lookup, Step(Placing(), "placing", key_by=key_of_counted)],
        table,
        snapshots=folder / "snapshots",
        job_id=JOB_ID,
        parallelism=settings.parallelism,
        max_parallelism=_MAX_PARALLELISM,
        snapshot_interval=_INTERVAL_SECONDS,
        restart=RestartPolicy(max_restarts=1_000_000, initial_delay=0.1, max_delay=0.5, reset_after=1.0),
        retention=Retention(keep_last=5, min_age=10.0),
        processes=_PROCESSES,
    )
    table.job.run_sync()


if __name__ == "__main__":
    run(JobSettings(**json.loads(sys.argv[1])))
