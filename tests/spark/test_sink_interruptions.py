"""Whatever a sink raises fails its query by name: no thread dies in silence, and nothing is taken for success."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession

from async_op import AsyncFunction, ConnectorInterrupted, OperatorInterrupted
from keygroups.events import Event, listen
from tests.quick import first_is_quick
from tests.spark.runs import PipelineRun

cloudpickle.register_pickle_by_value(sys.modules[__name__])

pytestmark = pytest.mark.spark

ROWS = 20
ERRORS = [asyncio.CancelledError, GeneratorExit, KeyboardInterrupt, SystemExit]


class Wait(AsyncFunction):
    """Returns each row; a call for an odd one lasts until `released` exists."""

    def __init__(self, released: Path) -> None:
        self.released = released

    async def async_invoke(self, value: dict[str, Any], ctx: Any) -> list[Any]:
        while value["id"] % 2 and not self.released.exists():
            await asyncio.sleep(0.01)
        return [(value["id"],)]


class Run(PipelineRun):
    """Its sink raises `error` in the first epoch with an odd row."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.released = folder / "released"
        self.error: type[BaseException] | None = None
        names = {"operator_id": "wait", "key_by": "id", "output_schema": "id bigint"}
        super().__init__(spark, folder, Wait(self.released), "id bigint", barrier_timeout=0.2, **names)
        self.write_file(spark.range(ROWS))

    def sink(self, batch: DataFrame, epoch: int) -> None:
        if self.error is not None and any(row.id % 2 for row in batch.collect()):
            error, self.error = self.error, None
            raise error("of the sink")
        super().sink(batch, epoch)
        if epoch == 1:
            self.released.touch()

    def query(self, **options: Any) -> Any:
        return self.pipeline().start(
            self.stream(), self.sink, checkpoint_location=self.folder / "checkpoint", **options
        )

    def assert_fails(self, query: Any, error: type[BaseException]) -> None:
        told = rf"the sink of epoch \d+ ended with {error.__name__}: of the sink, .* start again"
        for _ in "twice":
            with pytest.raises(ConnectorInterrupted, match=told):
                query.awaitTermination(300)
        assert isinstance(query.exception(), ConnectorInterrupted)
        assert not query.isActive
        query.stop()

    def assert_goes_on(self) -> None:
        self.run()
        assert sorted(row[0] for rows in self.delivered.values() for row in rows) == list(range(ROWS))


@pytest.fixture
def run(spark: SparkSession, tmp_path: Path) -> Iterator[Run]:
    run = Run(spark, tmp_path)
    yield run
    run.stop()


@pytest.mark.parametrize("error", first_is_quick(ERRORS))
def test_what_a_sink_raises_in_a_micro_batch_fails_the_query(run: Run, error: type[BaseException]) -> None:
    run.settings["barrier_timeout"], run.error = None, error
    run.released.touch()
    run.assert_fails(run.query(), error)
    run.assert_goes_on()


@pytest.mark.parametrize("trigger", first_is_quick([None, {"availableNow": True}]), ids=["while idle", "at the end"])
@pytest.mark.parametrize("error", first_is_quick([asyncio.CancelledError, SystemExit]))
def test_what_a_sink_raises_in_an_epoch_without_input_fails_the_query(
    run: Run, error: type[BaseException], trigger: Any
) -> None:
    run.error = error
    run.assert_fails(run.query(trigger=trigger), error)
    run.assert_goes_on()


@pytest.mark.parametrize("error", first_is_quick([asyncio.CancelledError, SystemExit]))
def test_what_a_sink_raises_where_its_caller_waits_is_raised_there(run: Run, error: type[BaseException]) -> None:
    run.released.touch()
    for how in (bounded, started_again):
        run.error = error
        with pytest.raises(ConnectorInterrupted, match=error.__name__):
            how(run)


def bounded(run: Run) -> None:
    run.pipeline(operator_id="bounded").run(run.spark.range(ROWS), run.sink, run_id="run")


def started_again(run: Run) -> None:
    error, run.error = run.error, SystemExit
    with pytest.raises(ConnectorInterrupted):
        run.query(trigger={"availableNow": True}).awaitTermination()
    run.error = error
    run.query(trigger={"availableNow": True})


def test_ctrl_c_in_a_sink_of_the_main_thread_stays_what_it_is(run: Run) -> None:
    assert threading.current_thread() is threading.main_thread()
    run.error = KeyboardInterrupt
    run.released.touch()
    with pytest.raises(KeyboardInterrupt):
        bounded(run)


@pytest.mark.parametrize("trigger", first_is_quick([None, {"availableNow": True}]), ids=["while idle", "micro-batch"])
def test_what_a_listener_raises_on_a_thread_of_the_query_fails_it(run: Run, trigger: Any) -> None:
    stop = listen(exits("drain" if trigger is None else "batch"))
    try:
        with pytest.raises(OperatorInterrupted, match="SystemExit: of a listener"):
            run.query(trigger=trigger).awaitTermination(300)
    finally:
        stop()
    run.assert_goes_on()


def exits(kind: str) -> Callable[[Event], None]:
    def listener(event: Event) -> None:
        if event.attributes.get("kind") == kind:
            raise SystemExit("of a listener")

    return listener
