"""One pipeline of a chain: its settings, which do not change, and its runner while it runs."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol
from weakref import WeakSet

from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from async_op.epochs.adoption import check_declared, check_fixed, check_kind, warn_of_repartition
from async_op.epochs.position import SourcePosition
from async_op.epochs.retention import Retention
from async_op.spark.autoscale import AutoscalePolicy
from async_op.spark.epoch.delivery import Outlet, Sink, refuse_in_sink
from async_op.spark.epoch.inputs import EpochSettings
from async_op.spark.epoch.runner import EpochRunner
from async_op.spark.epoch.scaling import Scaling, first_decision, measured_in
from async_op.spark.progress import PipelineProgress
from async_op.spark.rows.keys import key_columns, key_getter
from async_op.spark.rows.routing import Routing
from async_op.spark.rows.schemas import arrow_schema, check_columns, check_input_columns
from async_op.spark.task.pickling import check_pickles
from async_op.spark.worker_python import check_workers
from keygroups.errors import ConfigError
from keygroups.ranges import check_parallelism, default_max_parallelism
from keygroups.spark.session import default_parallelism
from snapshots import Snapshot, SnapshotStore
from snapshots.folder_hints import newest_or_empty
from snapshots.lineage import lineage_of

_log = logging.getLogger(__package__)

_made: WeakSet[Stage] = WeakSet()
"""The stages of this process: one that is started may fence another that runs over the same snapshots."""


class Beginning(NamedTuple):
    """The parallelism with which a pipeline begins, and why it is that.

    Attributes
    ----------
    parallelism : int
        The number of subtasks.
    reason : str
        The reason, for people to read.
    is_asked : bool
        Whether the user has passed this number, to the constructor or to `rescale`.
    """

    parallelism: int
    reason: str
    is_asked: bool = False


class Running(Protocol):
    """The query of a stage."""

    @property
    def id(self) -> str:
        """Spark's name of the query."""
        ...

    @property
    def isActive(self) -> bool:  # noqa: N802 - StreamingQuery's name
        """Whether epochs may still come."""
        ...

    def drain(self) -> None:
        """Finish what is in flight."""
        ...


class Runner(Protocol):
    """What runs the epochs of a stage, here or beside a server."""

    def rescale(self, parallelism: int) -> None:
        """Change the parallelism from the next epoch on."""
        ...

    @property
    def progress(self) -> PipelineProgress:
        """What the newest epochs did, oldest first, and the one that is under way."""
        ...


@dataclass(eq=False, kw_only=True)
class Stage:
    """One pipeline of a chain. Pipelines that share it, alone and in chains, share its parallelism and its runner.

    Any thread may call its methods.

    Attributes
    ----------
    store : SnapshotStore
        Its snapshots.
    settings : EpochSettings
        What all its epochs share.
    key_by, order_by : list of str
        Its key columns, and the columns by which rows are sorted.
    output_schema : StructType
        The schema of its outputs.
    parallelism : int or None
        The parallelism that the user has passed, or asked for with `rescale`; None for the newest snapshot's.
    max_parallelism : int or None
        The number of key groups as the user has passed it, or as it was found.
    autoscale : AutoscalePolicy or None
        Decides on the parallelism.
    retention : Retention or None
        Which versions stay.
    namespace : str or None
        The first part of all idempotency keys, if the user has chosen it.
    runner : Runner or None
        Runs its epochs, or has run them last.
    query : Running or None
        The query that it was started with last.
    sink : Sink or None
        Where that query's outputs go, if it is the last of its chain.
    is_rescaled : bool
        Whether `rescale` was called between runs: then its number counts for the next run, also with an autoscaler.
    beginning : Beginning or None
        How the next run begins, as `check` has found.
    is_copy : bool
        Whether it was sent to this process, such as with a sink to a Spark Connect server.
    """

    store: SnapshotStore
    settings: EpochSettings
    key_by: list[str]
    order_by: list[str]
    output_schema: StructType
    parallelism: int | None
    max_parallelism: int | None
    autoscale: AutoscalePolicy | None
    retention: Retention | None
    namespace: str | None = None
    runner: Runner | None = None
    query: Running | None = None
    sink: Sink | None = None
    is_rescaled: bool = False
    beginning: Beginning | None = None
    is_copy: bool = False

    def __post_init__(self) -> None:
        _made.add(self)
        for parallelism in (self.parallelism, None if self.autoscale is None else self.autoscale.max):
            if parallelism is not None:
                check_parallelism(parallelism, self.key_groups())

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what runs: a pipeline that is sent to a server starts afresh there."""
        return self.__dict__ | {"runner": None, "query": None, "sink": None, "is_copy": True}

    def key_groups(self, default: int = 1) -> int:
        """Return the number of key groups: the one passed, else the newest snapshot's, else what suits a parallelism.

        That is the one passed, else `default`.
        """
        if self.max_parallelism is not None:
            return self.max_parallelism
        latest = newest_or_empty(self.store.folder)
        if latest is None:
            return default_max_parallelism(self.parallelism or default)
        self.max_parallelism = latest.max_parallelism
        return self.max_parallelism

    def begins_with(self, latest: Snapshot | None, spark: SparkSession | None) -> Beginning:
        """Return the parallelism of the next run's first epoch.

        Without a session, what follows from the session is taken to be 1.
        """
        policy = self._acting_policy
        if self.parallelism is not None and (self.is_rescaled or policy is None or latest is None):
            found = Beginning(self.parallelism, "as passed", is_asked=True)
        elif latest is not None:
            found = Beginning(latest.parallelism, "as in the newest snapshot")
        else:
            default = 1 if spark is None else default_parallelism(spark)
            found = Beginning(min(default, self.key_groups(default)), "the default of the session")
        if policy is None or self.is_rescaled:
            return found
        measured = measured_in(self.store.folder, None if latest is None else latest.manifest.lineage)
        decision = first_decision(policy, measured, latest, found.parallelism)
        return found if decision.parallelism == found.parallelism else Beginning(decision.parallelism, decision.reason)

    @property
    def starting(self) -> int:
        """The parallelism with which the run begins that has been checked."""
        assert self.beginning is not None, "it was checked before"
        return self.beginning.parallelism

    @property
    def _acting_policy(self) -> AutoscalePolicy | None:
        """The autoscaler, if it changes the parallelism."""
        return None if self.autoscale is None or self.autoscale.dry_run else self.autoscale

    def lineage(self) -> str:
        """Return the first part of all idempotency keys, which is durable from now on.

        Raises
        ------
        IncompatibleSnapshot
            The newest snapshot has another one than the user has chosen.
        """
        latest = newest_or_empty(self.store.folder)
        return lineage_of(self.store.folder, None if latest is None else latest.manifest, self.namespace)

    def rescale(self, parallelism: int) -> None:
        """Change the parallelism from the next epoch on; raises `ConfigError` if it is not possible."""
        check_parallelism(parallelism, self.key_groups(parallelism))
        policy = self._acting_policy
        if policy is not None and not policy.min <= parallelism <= policy.max:
            reason = f"the autoscaler keeps it between {policy.min} and {policy.max}: pass it other bounds"
            raise ConfigError("parallelism", parallelism, reason)
        self.parallelism = parallelism
        # While a query runs, its policy may decide otherwise later; the next run then begins with what that decided.
        self.is_rescaled = self.query is None or not self.query.isActive
        if self.runner is not None:
            self.runner.rescale(parallelism)

    def routing(self, schema: StructType) -> Routing:
        """Return how rows find their subtasks.

        Raises
        ------
        ConfigError
            A column does not exist, or the rows have no columns or two of one name.
        UnsupportedKey
            The type of a key column has no hash.
        """
        hash_ = self.settings.options.hash
        check_columns(schema, "order_by", self.order_by)
        keys = key_columns(schema, self.key_by, hash_)
        check_input_columns(schema)
        return Routing(keys, hash_, self.key_groups(), self.order_by, schema)

    def check(self, spark: SparkSession) -> None:
        """Check what can be known to fail before anything is claimed, and find out how the run begins.

        Raises
        ------
        ConfigError
            The stage is already running, or an option cannot be sent to the executors.
        CalledInSink
            Its own sink starts it.
        UnpicklableFunction
            The function holds what cannot be sent to the executors.
        UnsuitableWorkerPython, ModuleNotOnWorkers
            On a local master: Spark's workers cannot run the function.
        IncompatibleSnapshot
            The newest snapshot belongs to a job, or has another lineage than the user has chosen.
        """
        refuse_in_sink("start or run", self.store.uri)
        if self.query is not None and self.query.isActive:
            raise ConfigError("pipeline", self.store.uri, "it is already running: stop its query first")
        check_pickles(self.settings.options, self.settings.wait_strategies)
        check_workers(spark, self.settings)
        latest = newest_or_empty(self.store.folder)
        check_kind(latest, is_of_job=False)
        found = self.beginning = self.begins_with(latest, spark)
        self.max_parallelism = self.key_groups(found.parallelism)
        asked = found.parallelism if found.is_asked else None
        warn_of_repartition(latest, SourcePosition.of(latest).parallelism, asked)
        self.lineage()

    def tell_of_takeover(self) -> None:
        """Log that this start fences another query of this process: in a notebook, a cell was run twice."""
        for other in list(_made):
            query = other.query
            if other is not self and other.store.uri == self.store.uri and query is not None and query.isActive:
                said = (
                    "%s: this start takes over from query %s of this process, which is still active and gets no more "
                    "rows: its results go to the new query; call stop() of the old query first"
                )
                _log.warning(said, self.store.uri, query.id)

    def check_fits(self, routing: Routing) -> None:
        """Check that the newest snapshot fits, before anything is claimed.

        Raises
        ------
        IncompatibleSnapshot
            It has another max parallelism or hash, or states that the function does not declare.
        """
        latest, sizes = newest_or_empty(self.store.folder), {"max_parallelism": routing.max_parallelism}
        check_fixed(latest, hash=routing.hash, parallelism=self.starting, **sizes)
        check_declared(latest, self.settings.options)

    def begin(self, spark: SparkSession, routing: Routing, outlet: Outlet, delay_milliseconds: int = 0) -> EpochRunner:
        """Claim the operator and return the runner of its epochs."""
        lineage, policy = self.lineage(), self.autoscale
        options = replace(self.settings.options, key_by=key_getter(routing.keys))
        runner = EpochRunner(
            spark,
            self.store,
            replace(self.settings, options=options),
            routing=routing,
            input_schema=arrow_schema(spark, routing.schema),
            output_schema=arrow_schema(spark, self.output_schema),
            parallelism=self.starting,
            lineage=lineage,
            outlet=outlet,
            watermark_delay_milliseconds=delay_milliseconds,
            scaling=None if policy is None else Scaling(policy, self.store.folder, lineage),
            retention=self.retention,
        )
        self.begun(runner)
        return runner

    def begun(self, runner: Runner) -> None:
        """Note what runs the epochs from now on: what was asked for before is its beginning."""
        self.runner, self.is_rescaled = runner, False
