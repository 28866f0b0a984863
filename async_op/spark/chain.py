"""Pipelines of which each gets the outputs of the one before, epoch by epoch, as the runners that work together."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial

from pyspark.sql import DataFrame, SparkSession

from async_op.epochs.position import BEGINNING, EpochRef, SourcePosition
from async_op.spark.epoch.delivery import Outlet, refuse_in_sink
from async_op.spark.epoch.history import Adopt, join_pipelines, missed_epochs
from async_op.spark.epoch.inputs import UpstreamEpoch
from async_op.spark.epoch.job_names import cancel_jobs, cancellable_jobs
from async_op.spark.epoch.runner import EpochRunner
from async_op.spark.rows.routing import Routing
from async_op.spark.rows.schemas import arrow_schema
from async_op.spark.stage import Stage
from keygroups.errors import ConfigError
from snapshots.spark import outputs_frame


class PipelineChain:
    """The runners of a chain, first to last; a pipeline without a next one is a chain of one. Any thread may call it.

    A pipeline's epoch counts as delivered once the next one has committed and delivered its own. So a pipeline keeps
    the outputs that the next one has not committed: they belong to its newest epoch.
    """

    def __init__(self, stages: Sequence[Stage], runners: Sequence[EpochRunner]) -> None:
        self._stages = tuple(stages)
        self._runners = tuple(runners)
        self._tag = f"keygroups-{uuid.uuid4().hex}"

    @classmethod
    def begin(
        cls, spark: SparkSession, stages: Sequence[Stage], routings: Sequence[Routing], outlet: Outlet, delay: int
    ) -> PipelineChain:
        """Claim all operators, last to first, and deliver what has not been delivered; `delay` is in milliseconds."""
        runners: list[EpochRunner] = []
        for number in reversed(range(len(stages))):
            runner = stages[number].begin(spark, routings[number], outlet, delay if number == 0 else 0)
            runners.insert(0, runner)
            outlet = partial(_feed, runner)
        chain = cls(stages, runners)
        try:
            chain._catch_up(spark)
        except BaseException:
            chain.close(spark, failed=True)
            raise
        return chain

    @property
    def runners(self) -> tuple[EpochRunner, ...]:
        """The runner of each pipeline."""
        return self._runners

    @property
    def first(self) -> EpochRunner:
        """The runner of the first pipeline, which gets the input."""
        return self._runners[0]

    @property
    def epochs(self) -> tuple[int, ...]:
        """The newest version of each pipeline."""
        return tuple(runner.epoch for runner in self._runners)

    def refuse_in_sink(self, what: str) -> None:
        """Raise `CalledInSink` if this thread is in the sink."""
        for stage in self._stages[-1:]:
            refuse_in_sink(what, stage.store.uri)

    def check(self) -> None:
        """Raise `WriterFenced` if another run has taken over."""
        for runner in self._runners:
            runner.coordinator.check()

    def deliver_ready(self, spark: SparkSession) -> None:
        """Run epochs without input where results have come."""
        with cancellable_jobs(spark, self._tag):
            for runner in self._runners:
                runner.deliver_ready(spark)

    def drain(self, spark: SparkSession, timeout: float | None = None) -> None:
        """Finish what is in flight, first to last, in `timeout` seconds at most; None waits for all calls."""
        until = None if timeout is None else time.monotonic() + timeout
        with cancellable_jobs(spark, self._tag):
            for runner in self._runners:
                runner.drain(spark, None if until is None else max(0.0, until - time.monotonic()))

    @property
    def has_hosts(self) -> bool:
        """Whether operators live in hosts."""
        return any(runner.fleet.is_resident for runner in self._runners)

    @property
    def is_delivering(self) -> bool:
        """Whether the sink is at work."""
        return any(runner.delivery.is_under_way for runner in self._runners[-1:])

    def conclude(self) -> None:
        """Have all hosts, and a sink that is tried again, wait no longer in the epoch under way."""
        for runner in self._runners:
            runner.fleet.conclude()
            runner.delivery.hurry()

    def give_up(self, spark: SparkSession) -> None:
        """Cancel the jobs of the epoch without input that is under way."""
        cancel_jobs(spark, self._tag)

    def close(self, spark: SparkSession, *, failed: bool = False) -> None:
        """End all hosts, first to last: the last results of a pipeline are the input of the next one."""
        with cancellable_jobs(spark, self._tag), ExitStack() as closing:
            for runner in reversed(self._runners):
                closing.callback(runner.close, spark, failed=failed)

    def _catch_up(self, spark: SparkSession) -> None:
        """Deliver, last to first, what has not been delivered, and run the epochs that a later pipeline has missed."""
        self._runners[-1].delivery.open()
        self._runners[-1].deliver_latest(spark)
        for number in reversed(range(len(self._runners) - 1)):
            stage, after = self._stages[number], self._runners[number + 1]
            schema = arrow_schema(spark, stage.output_schema)
            for snapshot in missed_epochs(stage.store, after.position.upstream or BEGINNING).epochs:
                _feed(after, outputs_frame(spark, snapshot, schema), SourcePosition.of(snapshot).ref)
            self._runners[number].deliver_latest(spark)


def join_chain(stages: Sequence[Stage], routings: Sequence[Routing], adopt: Adopt | None) -> None:
    """Make sure that the states of the pipelines belong together; raises what `join_pipelines` does."""
    for number in range(1, len(stages)):
        before, stage = stages[number - 1], stages[number]
        join_pipelines(before.store, stage.store, routings[number], adopt, parallelism=stage.starting)


def check_next(before: Stage, after: Stage) -> None:
    """Check that the outputs of one pipeline can be the input of another.

    Raises
    ------
    ConfigError, UnsupportedKey
        They cannot.
    """
    if before.settings.options.on_error == "dead_letter":
        reason = "dead letters are rows for the sink: only the last pipeline of a chain may have them"
        raise ConfigError("on_error", "dead_letter", reason)
    if after.settings.event_time is not None:
        raise ConfigError("event_time", after.settings.event_time, "the outputs of a pipeline have no watermark")
    after.routing(before.output_schema)


def check_distinct(stages: Sequence[Stage]) -> None:
    """Raise `ConfigError` if two pipelines of a chain have the same snapshots or the same idempotency namespace."""
    namespaces = [stage.namespace for stage in stages if stage.namespace is not None]
    for name in namespaces:
        if namespaces.count(name) > 1:
            reason = "two pipelines of the chain have it, so their calls could have equal keys: give each its own"
            raise ConfigError("idempotency_namespace", name, reason)
    uris = [stage.store.uri for stage in stages]
    for uri in uris:
        if uris.count(uri) > 1:
            raise ConfigError("pipeline", uri, "it is in the chain already: give each its own operator_id")


def _feed(runner: EpochRunner, frame: DataFrame, epoch: EpochRef) -> None:
    runner.run_input(frame, UpstreamEpoch(epoch))
