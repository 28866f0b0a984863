"""Who is killed, and where, while a pipeline runs over Spark Connect; the killer works in the worker beside the server.

As a program it is a client that runs the pipeline of `World`: ``python -m tests.spark.connect_kills URL FOLDER CASE``,
where an empty case is a run in which nobody is killed.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pyspark import cloudpickle
from pyspark.errors import StreamingQueryException

from async_op.spark import AsyncPipeline, ConnectQuery, EpochFailed, WorkerSilent
from async_op.spark.connect import worker as workers
from async_op.spark.connect.exchange import Wishes
from async_op.spark.epoch.runner import EpochRunner
from async_op.spark.stage import Stage
from keygroups import ConfigError
from tests.spark.connect_processes import session_of
from tests.spark.crash_points import CrashPoints
from tests.spark.exactly_once import World

cloudpickle.register_pickle_by_value(sys.modules[__name__])

VICTIMS = ["client", "worker", "host", "server"]
EPOCH_POINTS = ["after the subtasks", "before the sink", "in the sink", "after the delivery"]
ASKED_POINTS = ["rescale heard", "drain under way", "stop heard", "drain of the stop"]
"""What the client has asked for when somebody is killed; the sink of the first epoch waits until it has."""


@dataclass(frozen=True)
class Case:
    """Who is killed, at which point, and in which kind of epoch."""

    victim: str
    point: str
    kind: str

    def __str__(self) -> str:
        return f"{self.victim}-{self.point}-{self.kind}"

    @property
    def asked(self) -> str | None:
        """What the client asks for."""
        return next((asked for asked in ("rescale", "drain", "stop") if asked in self.point), None)

    def is_asked(self, wishes: Wishes) -> bool:
        """Tell whether the client has asked for it."""
        asked = {"rescale": wishes.parallelism[0] is not None, "drain": wishes.drains > 0, "stop": wishes.holds}
        return asked[str(self.asked)]


CASES = [Case(victim, point, kind) for victim in VICTIMS for point in EPOCH_POINTS for kind in ("batch", "drain")]
CASES += [Case(victim, point, "asked") for victim in VICTIMS for point in ASKED_POINTS]


class Killer:
    """Kills one process at one point, once. It begins where it is unpickled, in the worker."""

    def __init__(self, folder: Path, case: Case, client: int) -> None:
        self.folder = folder
        self.case = case
        self.client = client

    def __reduce__(self) -> Any:
        return begin, (self.folder, self.case, self.client)

    def __call__(self, is_written: bool) -> None:
        raise AssertionError("it is called in the worker only")


class ArmedKiller(Killer):
    """The killer at its place."""

    def arm(self) -> None:
        self.has_waited = False
        is_drain = self.case.asked in ("drain", "stop")
        point = "after the subtasks" if is_drain else self.case.point
        self.points = CrashPoints(point, "drain" if is_drain else self.case.kind, self.kill_in_epoch)
        self.is_stopping = False
        end, rescale = workers.ServerWorker._end, Stage.rescale

        def traced_end(worker: workers.ServerWorker, **options: Any) -> None:
            self.is_stopping = True
            if self.case.point == "stop heard":
                self.kill(self.points.runner)
            end(worker, **options)

        def traced_rescale(stage: Stage, parallelism: int) -> None:
            if self.case.point == "rescale heard":
                self.kill(self.points.runner)
            rescale(stage, parallelism)

        workers.ServerWorker._end = traced_end  # type: ignore[method-assign]
        Stage.rescale = traced_rescale  # type: ignore[method-assign]

    def __call__(self, is_written: bool) -> None:
        if is_written and self.case.asked is not None and not self.has_waited:
            self.has_waited = True
            self.wait_until_asked()
        self.points.in_sink(is_written)

    def wait_until_asked(self) -> None:
        for _ in range(600):
            (wishes,) = (self.folder / "snapshots" / "lookup").glob("queries/*/wishes.json")
            if self.case.is_asked(Wishes(**json.loads(wishes.read_text()))):
                return
            time.sleep(0.1)
        raise AssertionError("the client asks for nothing")

    def kill_in_epoch(self, runner: EpochRunner) -> None:
        is_drain_meant = self.case.asked != "stop" or self.is_stopping
        if is_drain_meant:
            self.kill(runner)
        else:
            self.points.happened = False

    def kill(self, runner: EpochRunner) -> None:
        told = self.folder / "killed"
        if told.exists():
            return
        world = World(self.folder)
        victim = {"client": self.client, "worker": os.getpid(), "server": os.getppid()}.get(self.case.victim)
        if victim is None:
            # Not of the progress, of which the first epoch has none before its end.
            victim = int(runner.fleet.hosts[0].rpartition(":")[2])
        committed = {"committed": sorted(world.committed_rows()), "calls": len(world.calls()), "victim": victim}
        told.with_name("kills").write_text(json.dumps(committed | {"worker": os.getpid()}))
        told.with_name("kills").rename(told)
        os.kill(victim, signal.SIGKILL)


def begin(folder: Path, case: Case, client: int) -> Killer:
    """Return a killer that is ready."""
    killer = ArmedKiller(folder, case, client)
    killer.arm()
    return killer


def ask(case: Case, folder: Path) -> Callable[[AsyncPipeline, Any], None]:
    """Return what a client does meanwhile."""

    def ask(pipeline: AsyncPipeline, query: ConnectQuery) -> None:
        if case.asked is None:
            return
        while not list((folder / "table").iterdir()):
            time.sleep(0.1)
        if case.asked == "rescale":
            pipeline.rescale(3)
        elif case.asked == "drain":
            pipeline.drain()
        else:
            query.stop(drain=True)

    return ask


def is_worker_killed(folder: Path) -> bool:
    """Tell whether the worker is the victim. A client would wait for a minute, and a busy machine may seem dead."""
    told = folder / "killed"
    return told.exists() and (pids := json.loads(told.read_text()))["victim"] == pids["worker"]


def main() -> None:
    """Run the pipeline, with or without a kill, and once more if the query has not ended by itself."""
    url, folder, told = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
    ConnectQuery._is_silent = lambda query, since: bool(told) and is_worker_killed(folder)  # type: ignore[method-assign]
    world, errors = World(folder, resident=True), []
    with session_of(url) as spark:
        if told:
            case = Case(**json.loads(told))
            killer = Killer(folder, case, os.getpid())
            try:
                world.run(spark, 2, in_sink=killer, meanwhile=ask(case, folder))
            except (StreamingQueryException, EpochFailed, WorkerSilent, ConfigError) as error:
                errors.append(repr(error)[:300])
                told = ""
        if not told or errors or case.asked == "stop":
            world.run(spark, 3)
    print(json.dumps(errors))  # noqa: T201 - the test reads it


def told_of(case: Case) -> str:
    """Return a case as the program takes it."""
    return json.dumps(asdict(case))


if __name__ == "__main__":
    main()
