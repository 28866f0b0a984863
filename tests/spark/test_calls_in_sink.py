"""What a sink may call of its own query: what would wait for the sink is refused by name, the rest works."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from async_op.spark import CalledInSink
from tests.spark.test_sink_interruptions import ROWS, Run

pytestmark = pytest.mark.spark


@pytest.fixture
def run(spark: SparkSession, tmp_path: Path) -> Iterator[Run]:
    run = Run(spark, tmp_path)
    yield run
    run.stop()


class Calling:
    """A sink that calls all of it in each epoch, and delivers the epoch to that of the run."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.query: Future[Any] = Future()
        self.pipeline = run.pipeline()
        self.refused = Counter[str]()
        self.progress: list[int] = []

    def calls(self, batch: DataFrame) -> dict[str, Callable[[], object]]:
        query, pipeline, where = self.query.result(), self.pipeline, self.run.folder / "checkpoint"
        return {
            "query.drain": query.drain,
            "pipeline.drain": pipeline.drain,
            "stop": query.stop,
            "stop with a drain": lambda: query.stop(drain=True),
            "awaitTermination": query.awaitTermination,
            "run": lambda: pipeline.run(batch, self, run_id="again"),
            "run of another": lambda: self.run.pipeline().run(batch, self, run_id="again"),
            "start": lambda: self.run.pipeline().start(self.run.stream(), self, checkpoint_location=where),
        }

    def __call__(self, batch: DataFrame, epoch: int) -> None:
        for name, call in self.calls(batch).items():
            try:
                call()
            except CalledInSink:
                self.refused[name] += 1
        self.pipeline.rescale(3)
        self.progress.append(len(self.pipeline.progress()))
        self.run.sink(batch, epoch)


@pytest.mark.thorough
def test_what_would_wait_for_the_sink_is_refused_in_it_and_the_rest_is_done(run: Run) -> None:
    sink = Calling(run)
    query = sink.pipeline.start(run.stream(), sink, checkpoint_location=run.folder / "checkpoint")
    sink.query.set_result(query)
    while sum(map(len, list(run.delivered.values()))) < ROWS:
        query.awaitTermination(1)
    assert query.exception() is None
    threading.Thread(target=query.stop).start()
    query.awaitTermination(300)
    epochs = len(run.deliveries)
    assert epochs > 1, "there are a micro-batch and an epoch without input"
    assert sink.refused == dict.fromkeys(sink.calls(run.spark.range(1)), epochs)
    assert set(run.deliveries.values()) == {1}
    assert sink.progress == list(range(epochs))
    latest = run.store.latest()
    assert latest is not None
    assert latest.parallelism == 3


def test_a_sink_may_stop_its_query_on_a_thread_that_it_does_not_wait_for(run: Run) -> None:
    started: Future[Any] = Future()

    def sink(batch: DataFrame, epoch: int) -> None:
        run.sink(batch, epoch)
        threading.Thread(target=started.result().stop).start()

    query = run.pipeline().start(run.stream(), sink, checkpoint_location=run.folder / "checkpoint")
    started.set_result(query)
    assert query.awaitTermination(300)
    query.stop()
    assert query.exception() is None
    assert run.deliveries[1] == 1
