"""What a client over Spark Connect does about a worker that is late, slow or lost. No server: the test plays it."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql.types import LongType, StructField, StructType

from async_op import BlocksEventLoop
from async_op.epochs.coordinator import Coordinator
from async_op.epochs.retention import Retention
from async_op.spark import AsyncPipeline, ConnectQuery, WorkerLate, WorkerSilent
from async_op.spark.chain import PipelineChain
from async_op.spark.connect import query as queries
from async_op.spark.connect import worker as workers
from async_op.spark.connect.exchange import Answer, Exchange
from async_op.spark.stage import Stage
from snapshots.filesystem import open_folder
from tests.snapshot_kit import parts

SCHEMA = StructType([StructField("id", LongType())])
SLOW_SECONDS = 2 * queries._SILENT_SECONDS


class Clock:
    """Virtual time; while it goes on, the worker does what `worker` says."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.worker: Callable[[], None] = lambda: None

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.worker()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(queries, "time", clock)
    return clock


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    settings: dict[str, Any] = {"key_by": "id", "output_schema": SCHEMA, "parallelism": 2}
    return AsyncPipeline(double, snapshots=tmp_path, operator_id="double", **settings)._stages[0]


@pytest.fixture
def query(stage: Stage) -> ConnectQuery:
    query = ConnectQuery([stage], [], lambda batch, epoch: None, 0)
    streaming: Any = SimpleNamespace(isActive=True, exception=lambda: None)
    streaming.stop = lambda: setattr(streaming, "isActive", False)
    streaming.awaitTermination = lambda timeout: True
    query.query = streaming
    return query


async def double(row: dict[str, Any]) -> tuple[int]:
    return (2 * row["id"],)


def exchange_of(query: ConnectQuery) -> Exchange:
    return query._exchange


def test_a_drain_waits_for_a_slow_worker_and_not_for_a_lost_one(clock: Clock, query: ConnectQuery) -> None:
    exchange = exchange_of(query)
    began = clock.now

    def work() -> None:
        answer = exchange.answered()
        exchange.answer(replace(answer, beat=answer.beat + 1, drains=int(clock.now > began + SLOW_SECONDS)))

    clock.worker = work
    query.drain()
    assert clock.now > began + SLOW_SECONDS

    clock.worker = lambda: None
    began = clock.now
    with pytest.raises(WorkerSilent, match="stop the query and start the pipeline again"):
        query.drain()
    assert queries._SILENT_SECONDS < clock.now - began < 2 * queries._SILENT_SECONDS


def test_a_client_that_waits_hears_meanwhile_what_the_worker_tells(clock: Clock, query: ConnectQuery) -> None:
    waits: list[int] = []

    def wait(timeout: int) -> bool:
        waits.append(timeout)
        clock.now += timeout
        exchange_of(query).answer(Answer(blocking=(BlocksEventLoop("shop", "look", "shop.py", 12),)))
        return False

    streaming: Any = query.query
    streaming.awaitTermination = wait
    with pytest.warns(BlocksEventLoop, match=r"shop\.look has blocked") as warned:
        assert query.awaitTermination(15) is False
    assert (waits, len(warned)) == ([10, 5], 1)


class Together:
    """A lock that two threads reach before one of them gets it."""

    def __init__(self) -> None:
        self._both = threading.Barrier(2, timeout=60)
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        self._both.wait()
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def test_no_wish_of_two_threads_is_lost(stage: Stage) -> None:
    query = ConnectQuery([stage, stage], [], lambda batch, epoch: None, 0)
    exchange, meeting = exchange_of(query), Together()
    exchange.answer(Answer(drains=2))
    query._wishing = meeting
    for first, second in ((query.drain, query.drain), (partial(query.rescale, 0, 3), partial(query.rescale, 1, 4))):
        thread = threading.Thread(target=second)
        thread.start()
        first()
        thread.join()

    wishes = exchange.wishes()
    assert wishes is not None
    assert (wishes.drains, wishes.parallelism) == (2, (3, 4))


@pytest.mark.parametrize("end", [ConnectQuery.stop, ConnectQuery.awaitTermination])
def test_the_end_waits_for_a_slow_worker_and_not_for_a_lost_one(
    clock: Clock, query: ConnectQuery, end: Callable[[ConnectQuery], Any]
) -> None:
    query.query.stop()
    began = clock.now
    with pytest.raises(WorkerSilent):
        end(query)
    assert clock.now < began + 2 * queries._SILENT_SECONDS
    assert not query.isActive

    def work() -> None:
        answer = Answer(beat=exchange_of(query).answered().beat + 1, is_over=clock.now > began + SLOW_SECONDS)
        exchange_of(query).answer(answer)

    work()
    clock.worker = work
    assert query.isActive
    end(query)
    assert clock.now > began + SLOW_SECONDS
    assert not query.isActive


@pytest.mark.parametrize(
    ("told", "raised"),
    [("Python worker failed to connect back.", WorkerLate), ("[NO_SUCH_TABLE] t", PySparkException)],
)
def test_a_start_tells_a_worker_that_is_late_from_other_errors(
    query: ConnectQuery, told: str, raised: type[Exception]
) -> None:
    def start() -> None:
        raise PySparkException(told)

    writer = SimpleNamespace(start=start)
    writer.option = lambda *_: writer
    frame: Any = SimpleNamespace(writeStream=SimpleNamespace(foreachBatch=lambda served: writer))
    with pytest.raises(raised):
        query.start(frame, "checkpoint", {})


class SlowChain(PipelineChain):
    """A chain whose drain takes until the client has heard of the worker, more than once."""

    def __init__(self, exchange: Exchange) -> None:
        super().__init__([], [])
        self.exchange = exchange
        self.has_beaten = False

    def drain(self, spark: Any, timeout: float | None = None) -> None:
        for _ in range(6000):
            if self.exchange.answered().beat > 3:
                self.has_beaten = True
                return
            threading.Event().wait(0.01)


@pytest.fixture
def handler_of_sigterm() -> Iterator[None]:
    handler = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, handler)


class Session:
    """Counts how often its server is asked; it may answer with an error."""

    def __init__(self) -> None:
        self.uses = 0
        self.conf = self.sparkContext = self

    def addJobTag(self, tag: str) -> None:  # noqa: N802 - Spark's name
        assert tag

    def removeJobTag(self, tag: str) -> None:  # noqa: N802 - Spark's name
        assert tag

    def get(self, name: str, default: str) -> str:
        self.uses += 1
        if self.uses == 2:
            raise PySparkException("UNAVAILABLE")
        return default


@pytest.fixture
def served(stage: Stage) -> workers.ServedPipeline:
    return workers.ServedPipeline(
        stages=(stage,),
        routings=(),
        outlet=lambda batch, epoch: None,
        watermark_delay_milliseconds=0,
        checkpoint_location="checkpoint",
        run_id="run",
        drains_at_end=False,
    )


def test_a_worker_shows_that_it_is_alive_while_it_drains(
    tmp_path: Path, served: workers.ServedPipeline, monkeypatch: pytest.MonkeyPatch, handler_of_sigterm: None
) -> None:
    exchange = Exchange(open_folder(str(tmp_path / "double")), "run")
    chain = SlowChain(exchange)
    monkeypatch.setattr(workers, "_LOOK_SECONDS", 0.001)
    monkeypatch.setattr(workers.PipelineChain, "begin", lambda *_: chain)
    exchange.wish(workers.Wishes(parallelism=(None,), drains=1))
    session: Any = Session()
    worker = workers.ServerWorker(served, session)
    worker._heed()
    worker._ended.set()
    worker._idle_epochs.join()
    assert chain.has_beaten
    worker._say()
    assert exchange.answered().drains == 1


def test_a_worker_uses_the_session_that_its_client_may_have_left(
    served: workers.ServedPipeline, clock: Clock, monkeypatch: pytest.MonkeyPatch, handler_of_sigterm: None
) -> None:
    session: Any = Session()
    monkeypatch.setattr(workers.IdleEpochs, "start", lambda *_: None)
    monkeypatch.setattr(workers.PipelineChain, "begin", lambda *_: PipelineChain([], []))
    monkeypatch.setattr(workers, "time", clock)
    worker = workers.ServerWorker(served, session)
    for _ in range(600):
        assert not worker.has_ended(0)
        clock.sleep(6.0)
    assert session.uses == 60


def test_a_worker_holds_micro_batches_for_a_stop_and_carries_it_out_if_the_client_is_lost(
    stage: Stage,
    served: workers.ServedPipeline,
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
    handler_of_sigterm: None,
) -> None:
    exchange = Exchange(stage.store.folder, served.run_id)
    monkeypatch.setattr(workers.IdleEpochs, "start", lambda *_: None)
    monkeypatch.setattr(workers.PipelineChain, "begin", lambda *_: PipelineChain([], []))
    monkeypatch.setattr(workers, "time", clock)
    stops: list[float] = []
    query = SimpleNamespace(stop=lambda: stops.append(clock.now))
    session: Any = SimpleNamespace(streams=SimpleNamespace(get=lambda _: query), conf=Session())
    worker = workers.ServerWorker(served, session)
    worker._query_id = "query"

    def look() -> list[float]:
        """Let the worker look each second for longer than it holds a query; returns when it has stopped that."""
        began = clock.now
        for _ in range(int(2 * workers._HOLD_SECONDS)):
            worker.has_ended(0)
            clock.sleep(1.0)
        return [stop - began for stop in stops[:1]]

    assert worker._begin_batch()
    exchange.wish(workers.Wishes(parallelism=(None,), drains_at_end=True, holds=True))
    assert not look()
    assert not exchange.answered().is_held, "a micro-batch is under way"
    worker.is_busy = False
    assert look() == [pytest.approx(workers._HOLD_SECONDS, abs=1.0)]
    assert exchange.answered().is_held
    assert not worker._begin_batch()


def test_no_collection_takes_the_files_of_the_run_that_a_worker_serves(
    stage: Stage, served: workers.ServedPipeline, monkeypatch: pytest.MonkeyPatch, handler_of_sigterm: None
) -> None:
    exchange = Exchange(stage.store.folder, served.run_id)
    exchange.wish(workers.Wishes(parallelism=(3,)))
    runner: Any = SimpleNamespace(coordinator=Coordinator(stage.store, Retention(min_age=0)))
    monkeypatch.setattr(workers.IdleEpochs, "start", lambda *_: None)
    monkeypatch.setattr(workers.PipelineChain, "begin", lambda *_: PipelineChain([], [runner]))
    session: Any = Session()
    workers.ServerWorker(served, session)

    stage.store.write(parts({}))
    runner.coordinator.garbage.epoch_ended(stage.store.folder, time.monotonic())
    runner.coordinator.close()
    assert exchange.wishes() == workers.Wishes(parallelism=(3,))


def test_a_worker_ends_with_its_server() -> None:
    worker = "import os; from async_op.spark.connect.worker import _end_with; server = os.getppid(); "
    worker += "print('up', flush=True); _end_with(server)"
    command = ["sh", "-c", '"$0" -c "$1" & wait', sys.executable, worker]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == "up\n"
        server.kill()
        assert server.stdout.read() == "", "the pipe is closed once the worker, too, has ended"
