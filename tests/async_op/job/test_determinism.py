"""A seed of the simulation is one run of a job: the same one each time, and in every process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.async_op.job.simulation.run import simulate

ROOT = Path(__file__).parents[3]
SEEDS = (5, 17, 58)
KINDS = {"rescale", "snapshot", "stop", "commit", "crash", "call", "result", "outputs", "delivered", "dead letters"} | {
    *("poison", "failure", "timer", "killed", "replaced", "replacement", "refusal", "restart", "batch"),
}
PRINT = "from tests.async_op.job import test_determinism as test; print(*map(repr, test.events()), sep='\\n')"


def events() -> list[tuple[Any, ...]]:
    """Return all that happens under the seeds, in order: each time the seed, the virtual time, the kind and details."""
    return [(seed, *event) for seed in SEEDS for world in simulate(seed) for event in world.trace]


def in_another_process() -> list[str]:
    """Return the events of a process in which text has other hashes."""
    environment = os.environ | {"PYTHONHASHSEED": "20130101", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", PRINT]
    printed = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True).stdout
    return printed.splitlines()


@pytest.mark.thorough
def test_a_seed_is_the_same_run_each_time_and_in_every_process() -> None:
    first = events()

    assert {kind for _, _, kind, *_ in first} == KINDS, "the seeds do not have all that can happen"
    assert events() == first
    assert in_another_process() == [repr(event) for event in first]
