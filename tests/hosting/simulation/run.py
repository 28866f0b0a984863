"""Runs a scenario: drivers one after the other until the input has come to its end, and then what must be left."""

from __future__ import annotations

import asyncio
from collections import Counter

from async_op import ElementFailed
from async_op.connectors.errors import UnwritableValue
from async_op.hosting.errors import FeederFenced, HostLost, HostUnreachable, IncompleteEpoch
from async_op.testing import VirtualLoop
from snapshots.commit import part_writer
from snapshots.testing import Crash
from tests.hosting.simulation.cluster import LEASE_SECONDS, Cluster
from tests.hosting.simulation.driver import Driver, SinkFailed
from tests.hosting.simulation.oracle import Oracle
from tests.hosting.simulation.scenario import Scenario
from tests.hosting.simulation.service import Violation, check, heard
from tests.hosting.simulation.storage import FAILURES, epoch_of
from tests.simulation.abandon import abandon
from tests.simulation.luck import without_luck
from tests.simulation.payments import Payments
from tests.simulation.remembered import remembered
from tests.simulation.world.thresholds import Threshold, buggified

_RUNS_MAX = 60

_DELTAS = (Threshold(part_writer, "DELTAS_MAX", (1, 2)), Threshold(part_writer, "DELTA_SHARE_MAX", (float("inf"),)))
"""Small snapshots have no deltas otherwise."""

_ENDS = (
    *FAILURES,
    Crash,
    ElementFailed,
    FeederFenced,
    HostLost,
    HostUnreachable,
    IncompleteEpoch,
    SinkFailed,
    UnwritableValue,
)
"""What ends a driver, so that another one takes over."""


def simulate(scenario: Scenario) -> Cluster:
    """Run a scenario to its end; raises the first promise that was broken."""
    loop = VirtualLoop()
    loop.set_exception_handler(lambda _, context: errors.append(context))
    errors: list[dict[str, object]] = []
    heard()
    try:
        with without_luck(scenario.seed), remembered(), buggified(scenario.random("deltas"), _DELTAS):
            payments = Payments()
            clusters = [loop.run_until_complete(_run(one, payments)) for one in scenario.operators]
            _check_paid(payments, scenario)
    except Violation:
        raise
    except Exception as error:
        raise next(iter(heard()), error) from error
    finally:
        abandon(loop)
    for violation in heard():
        raise violation
    assert not errors, errors[0]
    return clusters[0]


async def _run(scenario: Scenario, payments: Payments) -> Cluster:
    cluster = Cluster(scenario, payments)
    cluster.oracle = Oracle(cluster)
    for number in range(_RUNS_MAX):
        try:
            await Driver(cluster, number).go()
        except _ENDS as error:
            cluster.ends[type(error).__name__] += 1
            cluster.target.is_mended |= isinstance(error, UnwritableValue)
            is_of_storage = isinstance(error, FAILURES) and not isinstance(error, HostLost | HostUnreachable)
            if scenario.is_calm or (is_of_storage and not cluster.storage.is_faulty):
                raise
        else:
            break
        _raise_heard()
    else:
        check(False, "the query never ends")
    _check_end(cluster)
    for attempt, _ in list(cluster.attempts):
        attempt.cancel()  # Spark ends the tasks of a driver with it
    await asyncio.sleep(2 * LEASE_SECONDS)
    check(not cluster.alive(), f"hosts are left: {[process.address for process in cluster.alive()]}")
    _raise_heard()
    return cluster


def _check_end(cluster: Cluster) -> None:
    scenario, storage = cluster.scenario, cluster.storage
    rows = {row.number for batch in scenario.batches for row in batch}
    check(cluster.oracle.out == rows, f"{rows - cluster.oracle.out} never left")
    epochs = {one.number: one.outputs for one in storage.versions if epoch_of(one.snapshot) == one.number}
    cluster.target.check(epochs)
    if storage.versions:
        cluster.oracle.look_at_the_end(storage.versions[-1])
    if storage.versions and scenario.is_timed:
        check(not storage.versions[-1].timers, "timers have not fired")
        check(len(cluster.oracle.timers) == len(rows), f"{len(cluster.oracle.timers)} timers have fired")
    if scenario.is_calm:
        calls = Counter(dict.fromkeys(rows, 1))
        check(cluster.service.calls == calls, f"calls were repeated: {cluster.service.calls - calls}")


def _check_paid(payments: Payments, scenario: Scenario) -> None:
    """Check that each row of each operator was paid for, under one key; what a timer of a lost call has paid stays."""
    rows = [(one.operator, row.number) for one in scenario.operators for batch in one.batches for row in batch]
    timers = {identity for identity in payments.paid.values() if identity not in set(rows)}
    try:
        payments.check([*rows, *timers])
    except AssertionError as broken:
        check(False, str(broken))


def _raise_heard() -> None:
    for violation in heard():
        raise violation
