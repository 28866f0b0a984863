"""The driver's side of operators: one host for each subtask, of one parallelism at a time."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import count

from pyspark.sql import SparkSession

from async_op.hosting.messages import Status
from async_op.hosting.overseer import Overseer
from async_op.hosting.placement import Address
from async_op.hosting.places import sockets_of
from async_op.hosting.secret import new_secret
from async_op.spark.task.blueprint import EpochBlueprint
from async_op.spark.task.pickling import names_bound_to_tasks, pickled
from async_op.spark.task.report import Report, SubtaskReport
from async_op.spark.task.ways import HostAccess

_log = logging.getLogger(__package__)

BlueprintFor = Callable[[int], EpochBlueprint]


class Fleet:
    """The hosts of a query. Any thread may ask how they are; the others of its methods are called by one at a time.

    Parameters
    ----------
    blueprint_for : callable
        Returns what makes the operators of a parallelism.
    spark : SparkSession
        Whose executors run the hosts.
    is_resident : bool
        Whether there are hosts at all; without them each operator lives for one epoch, in its task.

    Attributes
    ----------
    parallelism : int or None
        Of the operators that there are.
    waiting : int
        Elements that have no room yet in their operators, after the newest epoch.
    """

    def __init__(self, blueprint_for: BlueprintFor, spark: SparkSession, *, is_resident: bool) -> None:
        self._blueprint_for = blueprint_for
        self._run_id = uuid.uuid4().hex
        self._secret = new_secret()
        self._driver_host = _driver_host(spark)
        self._generations = count(1)
        self._jobs = count(1)
        self._access: HostAccess | None = None
        self._overseer: Overseer | None = None
        self._is_loaded = True
        self._has_warned = False
        self.waiting = 0
        self.is_resident = is_resident and _may_be_resident(blueprint_for(1))
        self.parallelism: int | None = None
        if self.is_resident:
            _warn_of_settings(spark)

    def new_job(self) -> str:
        """Return the name of an attempt at an epoch."""
        return f"{self._run_id}-{next(self._jobs)}"

    def access(self, parallelism: int) -> HostAccess:
        """Return how tasks get at their hosts; with another parallelism, those of the one before must have ended."""
        if self.parallelism != parallelism:
            assert self.parallelism is None, "the hosts of another parallelism are told to end before"
            self._begin(parallelism)
        assert self._access is not None, "it begins with it"
        return self._access

    def locate(self, reports: Iterable[Report]) -> None:
        """Note where hosts are, also those of an epoch that has failed: they are to be told when all ends."""
        for report in reports:
            if self._overseer is not None and report.address is not None:
                self._overseer.report(report.subtask_index, report.address)

    def report(self, reports: Iterable[SubtaskReport]) -> None:
        """Note where the hosts are that the next epoch goes on with."""
        reports = list(reports)
        self.waiting = sum(int(report.part.metrics["waiting"]) for report in reports)
        self._is_loaded = all(report.part.metrics["is_loaded"] or report.address is None for report in reports)
        if self._overseer is None or self._access is None:
            return
        for report in reports:
            self._overseer.report(report.subtask_index, report.address)
        addresses = {one.subtask_index: one.address for one in reports if one.address is not None}
        self._access = replace(self._access, addresses=addresses)
        self._warn_of_fallback(reports)

    def _warn_of_fallback(self, reports: Iterable[SubtaskReport]) -> None:
        """Say once for a parallelism that an operator lives for its epoch only, which costs calls and time."""
        fallen = [report for report in reports if report.fallback is not None]
        if fallen and not self._has_warned:
            self._has_warned = True
            first = fallen[0]
            _log.warning(
                "%d of %d operators ran in their tasks, so calls under way are made again in the next epoch; that of "
                "subtask %d because %s",
                len(fallen),
                self.parallelism,
                first.subtask_index,
                first.fallback,
            )

    @property
    def is_loaded(self) -> bool:
        """Whether no host reads the version any more that it was restored from."""
        return self._is_loaded

    @property
    def hosts(self) -> tuple[str, ...]:
        """The processes of the hosts, by their machines and ids."""
        return () if self._access is None else tuple(one.process for one in self._access.addresses.values())

    def poll(self) -> list[Status]:
        """Ask all hosts how they are; those that are not reached are left out."""
        overseer = self._overseer
        return [] if overseer is None else list(overseer.poll().values())

    def committed(self, version: int) -> None:
        """Tell the hosts that a version exists."""
        if self._overseer is not None:
            self._overseer.committed(version)

    def end(self, version: int) -> None:
        """Tell all hosts to end; `version` is that of the newest manifest."""
        if self._overseer is not None:
            self._overseer.stop(version)
            self._overseer.__exit__()
            self._stop_strays(version)
        self._overseer = self._access = self.parallelism = None
        self.waiting = 0

    def _stop_strays(self, version: int) -> None:
        """End what attempts that failed have left on this machine; elsewhere such hosts end with their lease."""
        assert self._access is not None, "there were hosts"
        with Overseer(self._access.generation, self._secret) as overseer:
            for number, path in enumerate(sockets_of(self._run_id)):
                overseer.report(number, Address(str(path)))
            overseer.stop(version)

    def _begin(self, parallelism: int) -> None:
        generation = f"{self._run_id}, {next(self._generations)}"
        blueprint = self._blueprint_for(parallelism)
        self.parallelism = parallelism
        self._has_warned = False
        if not self.is_resident:
            self._access = HostAccess(generation=generation, blueprint=blueprint)
            return
        self._access = HostAccess(
            generation=generation,
            blueprint=pickled(blueprint),
            run_id=self._run_id,
            secret=self._secret,
            driver_host=self._driver_host,
        )
        self._overseer = Overseer(generation, self._secret).__enter__()


def _may_be_resident(blueprint: EpochBlueprint) -> bool:
    names = names_bound_to_tasks(blueprint)
    if names:
        _log.warning("the function has %s, which only a task has: it runs in tasks, as with resident=False", names)
    return not names


def _driver_host(spark: SparkSession) -> str | None:
    """Return an address of the driver, unless all is on one machine, or the network is to be encrypted."""
    context = spark.sparkContext
    settings = context.getConf()
    is_encrypted = any(settings.get(name, "false") == "true" for name in _ENCRYPTIONS)
    return None if str(context.master).startswith("local[") or is_encrypted else settings.get("spark.driver.host")


_ENCRYPTIONS = ("spark.network.crypto.enabled", "spark.authenticate.enableSaslEncryption", "spark.ssl.rpc.enabled")

_UNSUITABLE = {
    "spark.dynamicAllocation.enabled": "takes executors away that only hosts use: calls in flight there are made again",
    "spark.speculation": "runs tasks twice: their calls are made twice",
}


def _warn_of_settings(spark: SparkSession) -> None:
    for name, consequence in _UNSUITABLE.items():
        if spark.conf.get(name, "false") == "true":
            _log.warning("%s is on, which %s", name, consequence)
