"""The hosts of a query, as the driver sees them: one for each subtask, and one generation at a time."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from itertools import count

from pyspark.sql import SparkSession

from async_op.errors import BlocksEventLoop
from async_op.hosting.errors import HostSilent
from async_op.hosting.host_sightings import Sighting, forget, sightings_in
from async_op.hosting.messages import Status
from async_op.hosting.process.local_hosts import blocking_in, hosts_of
from async_op.hosting.supervisor import HostSupervisor
from async_op.hosting.wire.sockets import new_secret
from async_op.resilience.lending import Lender
from async_op.spark.task.host_access import HostAccess
from async_op.spark.task.operator_factory import EpochOperatorFactory
from async_op.spark.task.pickling import names_bound_to_tasks, pickled
from async_op.spark.task.report import Report, SubtaskFailure, SubtaskReport
from async_op.threads.operator_process import log_levels
from async_op.threads.watchdog import warn_of
from keygroups.spark.session import setting
from snapshots import Snapshot
from snapshots.filesystem import Folder
from snapshots.host_logs import logs_pattern, new_run_id

_log = logging.getLogger(__package__)

OperatorFactoryFor = Callable[[int], EpochOperatorFactory]


class Fleet:
    """The hosts of a query. Any thread may call `poll` and `conclude`; one thread at a time the other methods.

    Parameters
    ----------
    factory_for : callable
        Returns the factory of the operators for a parallelism.
    spark : SparkSession
        The session whose executors run the hosts.
    folder : Folder
        The folder of the operator's snapshots, where tasks say what they see of their hosts; logs are found by its URI.
    is_resident : bool
        Whether operators live in hosts; if not, each operator lives for one epoch, inside its task.

    Attributes
    ----------
    parallelism : int or None
        The parallelism of the current generation; None if there is none.
    """

    def __init__(
        self, factory_for: OperatorFactoryFor, spark: SparkSession, folder: Folder, *, is_resident: bool
    ) -> None:
        self._factory_for = factory_for
        self._folder, self._run_id = folder, new_run_id(folder.uri)
        self._secret = new_secret()
        self._driver_host = _driver_host(spark)
        self._generations = count(1)
        self._jobs = count(1)
        self._access: HostAccess | None = None
        self._supervisor: HostSupervisor | None = None
        self._lender: Lender | None = None
        self._is_loaded = True
        self._has_warned = False
        self._had_room = True
        self._told: set[str] = set()
        self._sightings: list[Sighting] = []
        self._blocking: dict[tuple[str, str], BlocksEventLoop] = {}
        factory = factory_for(1)
        self._hears_of_snapshots = factory.options.function.hears_of_snapshots
        self.is_resident = is_resident and _may_be_resident(factory)
        self.parallelism: int | None = None
        if self.is_resident:
            _warn_of_settings(spark)
            pattern = logs_pattern(folder.uri)
            _log.info("functions of %s print to %s, on the machines of executors", folder.uri, pattern)

    def new_job(self) -> str:
        """Return a new name for an attempt at an epoch."""
        return f"{self._run_id}-{next(self._jobs)}"

    def access(self, parallelism: int) -> HostAccess:
        """Return how tasks reach their hosts. With another parallelism, `end` must have been called before."""
        if self.parallelism != parallelism:
            assert self.parallelism is None, "the hosts of another parallelism have been told to end"
            self._begin(parallelism)
        assert self._access is not None, "a generation has begun"
        return self._access if self._lender is None else replace(self._access, allowances=self._lender.plan())

    def locate(self, reports: Iterable[Report]) -> None:
        """Note where hosts are, also after a failed epoch, so that `end` can stop them, and which were given up."""
        if self._supervisor is None or self._access is None:
            return
        given_up = dict(self._access.given_up)
        for report in reports:
            if report.address is None:
                continue
            self._supervisor.report(report.subtask_index, report.address)
            if isinstance(report, SubtaskFailure) and isinstance(report.error, HostSilent):
                given_up[report.subtask_index] = report.address.process
        self._access = replace(self._access, given_up=given_up)

    def report(self, reports: Iterable[SubtaskReport]) -> None:
        """Note where the hosts are and what waits in them, as the tasks of a successful epoch reported it."""
        reports = list(reports)
        self._had_room = all(report.part.metrics["has_room"] for report in reports)
        self._is_loaded = all(report.part.metrics["is_loaded"] or report.address is None for report in reports)
        if self._lender is not None:
            holdings = {report.subtask_index: report.part.holdings for report in reports}
            self._lender.note([holdings[subtask] for subtask in sorted(holdings)])
        if self._supervisor is None or self._access is None:
            return
        for report in reports:
            self._supervisor.report(report.subtask_index, report.address)
        addresses = {one.subtask_index: one.address for one in reports if one.address is not None}
        self._access = replace(self._access, addresses=addresses)
        self._warn_of_fallback(reports)
        self._warn_of_blocking(found for report in reports if report.address for found in report.part.blocking)

    def _warn_of_fallback(self, reports: Iterable[SubtaskReport]) -> None:
        """Warn, once per generation, that operators live for one epoch only, which repeats calls and takes time."""
        fallen = [report for report in reports if report.fallback is not None]
        if fallen and not self._has_warned:
            self._has_warned = True
            first = fallen[0]
            _log.warning(
                "%d of %d operators ran in their tasks, so calls under way are repeated in the next epoch; "
                "subtask %d did because %s",
                len(fallen),
                self.parallelism,
                first.subtask_index,
                first.fallback,
            )

    def _warn_of_blocking(self, blocking: Iterable[BlocksEventLoop]) -> None:
        """Warn once of each function that blocks the event loop of its host, whose log few look into."""
        for found in blocking:
            if self._blocking.setdefault((found.module, found.function), found) is found:
                warn_of(found)

    @property
    def blocking(self) -> tuple[BlocksEventLoop, ...]:
        """The functions that are known to have blocked the event loop of their host."""
        return tuple(self._blocking.values())

    @property
    def is_loaded(self) -> bool:
        """Whether all hosts have loaded the version that they were restored from, and read its files no more."""
        return self._is_loaded

    @property
    def hosts(self) -> tuple[str, ...]:
        """The processes of the hosts, as ``machine:process id``."""
        return () if self._access is None else tuple(one.process for one in self._access.addresses.values())

    def poll(self) -> list[Status]:
        """Return the status of each host; hosts that do not answer are left out."""
        return list(self._asked(self._supervisor).values())

    def look(self) -> list[Status]:
        """Return what `poll` does, and the statuses of hosts that no epoch has reported yet.

        Names hosts that hang, and functions that block the event loop of hosts that cannot answer.
        """
        access, supervisor = self._access, self._supervisor
        found = self._asked(supervisor)
        self._warn_of_blocking(blocking_in(self._run_id))
        if access is None or supervisor is None or len(found) == self.parallelism:
            return list(found.values())
        self._sightings = sightings_in(self._folder, access.generation)
        self._warn_of_blocking(blocking for one in self._sightings for blocking in one.blocking)
        supervisor.warn_of_silent({one.subtask: one.address for one in self._sightings if one.is_silent})
        with self._strays(access, without=supervisor.processes) as strays:
            return list({**self._asked(strays), **found}.values())

    def _asked(self, supervisor: HostSupervisor | None) -> Mapping[int, Status]:
        found = {} if supervisor is None else supervisor.poll()
        self._warn_of_blocking(blocking for status in found.values() for blocking in status.blocking)
        return found

    def has_room(self) -> bool:
        """Tell whether all hosts have room for the rows of another epoch, as they reported or as they answer now."""
        if self._had_room:
            return True
        statuses = self.poll()
        return len(statuses) == self.parallelism and all(status.has_room for status in statuses)

    @property
    def is_budget_short(self) -> bool:
        """Whether calls waited for more of a budget at the end of the newest epoch."""
        return self._lender is not None and self._lender.is_budget_short

    def can_lend(self, statuses: Iterable[Status]) -> bool:
        """Tell whether an epoch would help a host that waits for what others do not use of a limit."""
        return self._lender is not None and self._lender.can_help([status.holdings for status in statuses])

    def committed(self, version: int) -> None:
        """Tell the hosts that a version is committed: those whose final cut belongs to it end."""
        if self._supervisor is not None:
            self._supervisor.committed(version)

    def conclude(self) -> None:
        """Have the hosts wait no longer in the epoch under way; in a first epoch, as far as they have been seen."""
        supervisor, access = self._supervisor, self._access
        if supervisor is not None and access is not None:
            supervisor.conclude()
            with self._strays(access) as strays:
                strays.conclude()

    def announce(self, snapshot: Snapshot) -> None:
        """Tell the hosts that a snapshot is committed, if their function wants to know; it waits for no host."""
        if self._supervisor is not None and self._hears_of_snapshots:
            self._supervisor.announce({channel.subtask: channel.cut_id for channel in snapshot.manifest.channels})

    def end(self, version: int) -> None:
        """Tell all hosts to end; `version` is the version of the newest manifest."""
        if self._supervisor is not None:
            self._supervisor.stop(version)
            self._supervisor.__exit__()
            self._stop_strays(version)
        self._supervisor = self._access = self._lender = self.parallelism = None
        self._had_room = True

    def _stop_strays(self, version: int) -> None:
        """End hosts that failed attempts have left; those that were never seen from here end with their lease."""
        assert self._access is not None, "there are hosts to end"
        with self._strays(self._access) as supervisor:
            supervisor.stop(version)
        self._sightings = []
        forget(self._folder, self._access.generation)

    def _strays(self, access: HostAccess, without: Collection[str] = ()) -> HostSupervisor:
        """Return a supervisor of all hosts on this machine and those that tasks have seen, reported by an epoch or not.

        Processes in `without` are left out.
        """
        supervisor = HostSupervisor(access.generation, self._secret, told=self._told)
        seen = {one.subtask: one.address for one in self._sightings}
        for subtask, address in (hosts_of(self._run_id, access.generation) | seen).items():
            if address.process not in without:
                supervisor.report(subtask, address)
        return supervisor

    def _begin(self, parallelism: int) -> None:
        generation = f"{self._run_id}, {next(self._generations)}"
        factory = self._factory_for(parallelism)
        self.parallelism = parallelism
        self._has_warned = False
        if not self.is_resident:
            self._access = HostAccess(generation=generation, factory=factory)
            return
        self._access = HostAccess(
            generation=generation,
            factory=pickled(factory),
            run_id=self._run_id,
            secret=self._secret,
            driver_host=self._driver_host,
            log_levels=log_levels(),
        )
        self._supervisor = HostSupervisor(generation, self._secret, told=self._told).__enter__()
        resilience = factory.options.resilience
        self._lender = None if resilience is None else Lender(resilience.lendable(parallelism), parallelism)


def _may_be_resident(factory: EpochOperatorFactory) -> bool:
    names = names_bound_to_tasks(factory)
    if names:
        held = " and ".join(names)
        _log.warning("the function holds %s, for tasks only: it runs there, as with resident=False", held)
    return not names


def _driver_host(spark: SparkSession) -> str | None:
    """Return the driver's address; None if all runs on one machine, or Spark encrypts its traffic, as hosts cannot."""
    is_alone = setting(spark, "spark.master").startswith("local[") or is_encrypted(spark)
    return None if is_alone else setting(spark, "spark.driver.host") or None


def is_encrypted(spark: SparkSession) -> bool:
    """Tell whether Spark encrypts its traffic, as hosts cannot."""
    return any(setting(spark, name) == "true" for name in _ENCRYPTIONS)


_ENCRYPTIONS = ("spark.network.crypto.enabled", "spark.authenticate.enableSaslEncryption", "spark.ssl.rpc.enabled")

_UNSUITABLE = {
    "spark.dynamicAllocation.enabled": "takes away executors that run only hosts: their calls in flight are made again",
    "spark.speculation": "runs some tasks twice: their calls are made twice",
}


def unsuitable_settings(spark: SparkSession) -> dict[str, str]:
    """Return the settings that do not suit hosts, with what follows from each."""
    return {name: consequence for name, consequence in _UNSUITABLE.items() if setting(spark, name) == "true"}


def _warn_of_settings(spark: SparkSession) -> None:
    for name, consequence in unsuitable_settings(spark).items():
        _log.warning("%s is on, which %s", name, consequence)
