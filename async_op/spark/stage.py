"""One pipeline of a chain: its settings, which do not change, and its runner while it runs."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import Any, Protocol
from weakref import WeakSet

from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from async_op.epochs.adoption import check_declared, check_fixed, check_kind, warn_of_repartition
from async_op.epochs.position import SourcePosition
from async_op.retention import Retention
from async_op.spark.autoscale import AutoscalePolicy
from async_op.spark.epoch.delivery import Outlet, Sink, refuse_in_sink
from async_op.spark.epoch.orders import EpochSettings
from async_op.spark.epoch.runner import EpochRunner
from async_op.spark.progress import EpochProgress
from async_op.spark.rows.keys import key_columns, key_getter
from async_op.spark.rows.routing import Routing
from async_op.spark.rows.schemas import arrow_schema, check_columns
from async_op.spark.task.pickling import check_pickles
from async_op.spark.worker_python import check_workers
from keygroups.errors import ConfigError
from keygroups.ranges import check_parallelism, default_max_parallelism
from snapshots import SnapshotStore
from snapshots.lineage import lineage_of
from snapshots.surroundings import newest_or_empty

_log = logging.getLogger(__package__)

_made: WeakSet[Stage] = WeakSet()
"""The stages of this process: one that is started may fence another that runs over the same snapshots."""


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
    def progress(self) -> tuple[EpochProgress, ...]:
        """What the newest epochs did, oldest first."""
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
    parallelism : int
        The parallelism of the next epoch.
    max_parallelism : int or None
        The number of key groups as the user has passed it.
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
    """

    store: SnapshotStore
    settings: EpochSettings
    key_by: list[str]
    order_by: list[str]
    output_schema: StructType
    parallelism: int
    max_parallelism: int | None
    autoscale: AutoscalePolicy | None
    retention: Retention | None
    namespace: str | None = None
    runner: Runner | None = None
    query: Running | None = None
    sink: Sink | None = None

    def __post_init__(self) -> None:
        _made.add(self)
        check_parallelism(self.parallelism, self.key_groups())
        if self.autoscale is not None:
            check_parallelism(self.autoscale.max, self.key_groups())

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what runs: a pipeline that is sent to a server starts afresh there."""
        return self.__dict__ | {"runner": None, "query": None, "sink": None}

    def key_groups(self) -> int:
        """Return the number of key groups: the one passed, else the newest snapshot's, else a default."""
        if self.max_parallelism is None:
            latest = newest_or_empty(self.store.folder)
            self.max_parallelism = (
                default_max_parallelism(self.parallelism) if latest is None else latest.max_parallelism
            )
        return self.max_parallelism

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
        check_parallelism(parallelism, self.key_groups())
        self.parallelism = parallelism
        if self.runner is not None:
            self.runner.rescale(parallelism)

    def routing(self, schema: StructType) -> Routing:
        """Return how rows find their subtasks.

        Raises
        ------
        ConfigError
            A column does not exist.
        UnsupportedKey
            The type of a key column has no hash.
        """
        hash_ = self.settings.options.hash
        check_columns(schema, "order_by", self.order_by)
        return Routing(key_columns(schema, self.key_by, hash_), hash_, self.key_groups(), self.order_by, schema)

    def check(self, spark: SparkSession) -> None:
        """Check what can be known to fail before anything is claimed.

        Raises
        ------
        ConfigError
            The stage is already running.
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
        check_pickles(self.settings.options.function)
        check_workers(spark, self.settings.options)
        latest = newest_or_empty(self.store.folder)
        check_kind(latest, is_of_job=False)
        if self.autoscale is None or self.autoscale.dry_run:  # otherwise the snapshot's parallelism is taken
            warn_of_repartition(latest, SourcePosition.of(latest).parallelism, self.parallelism)
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
        check_fixed(latest, hash=routing.hash, parallelism=self.parallelism, **sizes)
        check_declared(latest, self.settings.options)

    def begin(self, spark: SparkSession, routing: Routing, outlet: Outlet, delay_milliseconds: int = 0) -> EpochRunner:
        """Claim the operator and return the runner of its epochs."""
        options = replace(self.settings.options, key_by=key_getter(routing.keys))
        runner = self.runner = EpochRunner(
            spark,
            self.store,
            replace(self.settings, options=options),
            routing=routing,
            input_schema=arrow_schema(spark, routing.schema),
            output_schema=arrow_schema(spark, self.output_schema),
            parallelism=self.parallelism,
            lineage=self.lineage(),
            outlet=outlet,
            watermark_delay_milliseconds=delay_milliseconds,
            autoscale=self.autoscale,
            retention=self.retention,
        )
        return runner
