"""Random worlds; see `world.py` for what is in one, and `oracle.py` for what is checked after every step.

`--seeds 20000` runs more of them; `--seed 17` replays one.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation.world.world import simulate

ROOT = Path(__file__).parents[3]
PRINT = "from tests.simulation.world.test_world import history; print(history())"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    seed = metafunc.config.getoption("--seed")
    seeds = range(metafunc.config.getoption("--seeds")) if seed is None else [seed]
    if "seed" in metafunc.fixturenames:
        metafunc.parametrize("seed", seeds)


def test_every_promise_holds_in_a_world(seed: int) -> None:
    simulate(seed)


def history() -> list[tuple[list[tuple[str, int]], list[int]]]:
    """Return what happened under some seeds, and the versions that were left."""
    worlds = [simulate(seed) for seed in (2, 3)]
    return [(sorted(world.storage.met.items()), sorted(world.oracle.acknowledged)) for world in worlds]


@pytest.mark.thorough
def test_a_seed_is_the_same_world_each_time_and_in_every_process() -> None:
    environment = os.environ | {"PYTHONHASHSEED": "20130101", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", PRINT]
    printed = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True).stdout
    first = history()

    assert history() == first
    assert printed.strip() == repr(first)
