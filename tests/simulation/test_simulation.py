"""Random runs of the operator under a virtual clock; see `ledger.py` for what is checked after every step.

`--seeds 5000` runs more of them, `--seed 17` replays one.
"""

from __future__ import annotations

import pytest

from tests.simulation.run import simulate
from tests.simulation.scenario import scenario_of


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    seed = metafunc.config.getoption("--seed")
    seeds = range(metafunc.config.getoption("--seeds")) if seed is None else [seed]
    if "seed" in metafunc.fixturenames:
        metafunc.parametrize("seed", seeds)


def test_every_promise_holds_in_a_random_run(seed: int) -> None:
    scenario = scenario_of(seed)
    try:
        simulate(scenario)
    except BaseException:
        print(f"replay with --seed {seed}: {scenario}")  # noqa: T201
        raise
