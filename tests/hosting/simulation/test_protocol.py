"""The protocol of hosts under everything that can go wrong, on virtual time, with real snapshots on a failing storage.

`--seeds 20000 --timeout 0` runs more of the random ones, also on a machine that sleeps meanwhile, which is nothing but
the timeout's business; `--seed 17` replays one.
"""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from itertools import count

import pytest

from async_op import OperatorClosed
from async_op.hosting.errors import HostLost
from snapshots import IncompleteSnapshot, SnapshotCorrupted
from tests.hosting.simulation.mutants import MUTANTS
from tests.hosting.simulation.run import simulate
from tests.hosting.simulation.scenario import HARMLESS, only, scenario_of
from tests.hosting.simulation.service import Violation
from tests.quick import first_is_quick, seeds_of_long_runs

_MUTANT_SEEDS = 800
"""The rarest fault, a host that fails between two epochs, matters in one seed of some four hundred."""

_ORDINARY = 18
"""A seed with several batches, timers, elements that wait for room, and calls that outlive their epoch."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    seed = metafunc.config.getoption("--seed")
    if "seed" in metafunc.fixturenames:
        metafunc.parametrize("seed", range(metafunc.config.getoption("--seeds")) if seed is None else [seed])


def test_every_promise_holds_whatever_goes_wrong(seed: int) -> None:
    simulate(scenario_of(seed))


@pytest.mark.thorough
@pytest.mark.parametrize("name", MUTANTS)
def test_a_broken_rule_is_seen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant = MUTANTS[name]
    mutant.broken(monkeypatch)

    assert any(is_seen(seed, mutant.faults) for seed in range(_MUTANT_SEEDS)), name


@pytest.mark.parametrize("fault", first_is_quick(HARMLESS))
def test_what_zombies_and_strangers_say_costs_no_call(fault: str, pytestconfig: pytest.Config) -> None:
    for seed in range(seeds_of_long_runs(pytestconfig, 12, 40)):
        simulate(only(scenario_of(seed), fault))


@pytest.mark.thorough
@pytest.mark.parametrize("fault", ["kill host", "break", "kill task", "hang", "kill driver"])
def test_one_fault_at_every_step_of_a_run(fault: str) -> None:
    calm = replace(scenario_of(_ORDINARY), fault_rate=0.0, poison=False)
    steps = simulate(calm).steps
    assert steps > 100
    for step in range(1, steps + 1):
        simulate(replace(calm, fault_at=(step, fault)))


def story(seed: int) -> tuple[object, ...]:
    """Return what happened under a seed."""
    cluster = simulate(scenario_of(seed))
    versions = [(one.snapshot.manifest.snapshot_id, one.outputs) for one in cluster.storage.versions]
    return versions, cluster.met, cluster.ends, cluster.steps, cluster.service.calls


def test_a_seed_is_the_same_run_each_time_however_the_clock_of_the_machine_jumps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stories = [story(seed) for seed in range(8)]
    for clock in ("monotonic", "time", "perf_counter"):
        monkeypatch.setattr(time, clock, partial(next, count(0, 3600)))

    assert [story(seed) for seed in range(8)] == stories


@pytest.mark.thorough
def test_the_random_runs_meet_everything() -> None:
    missing = {"busy", "foreign", "replace", "stale", "in the task", "held", "waiting", "reserve"}
    missing |= {"concluded", "UnwritableValue", "sink: before the dead letters", "sink: after the dead letters"}
    missing |= {"given up", "sink: between a refusal and what follows from it"}
    missing |= {"failed", "final", "Crash", "epoch: CommitOutcomeUnknown", "epoch: WriterFenced"}
    for seed in range(1000):  # the rarest is met by one in a hundred
        cluster = simulate(scenario_of(seed))
        missing -= set(cluster.met + cluster.ends)
        if not missing:
            break

    assert not missing


def is_seen(seed: int, faults: tuple[str, ...]) -> bool:
    scenario = scenario_of(seed)
    try:
        simulate(only(scenario, *faults) if faults else scenario)
    # Whoever commits or reads looks at the parts as well; no feeder is let into an operator that is closed; and an
    # epoch that is lost again and again ends the run.
    except (Violation, IncompleteSnapshot, SnapshotCorrupted, OperatorClosed, HostLost):
        return True
    return False
