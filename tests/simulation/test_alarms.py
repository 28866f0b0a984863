"""Random runs of timers and values that expire, under a virtual clock; see `alarms.py` for what is checked.

`--seeds 5000` runs more of them, `--seed 17` replays one.
"""

from __future__ import annotations

import pytest

from tests.simulation.alarms import simulate


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    seed = metafunc.config.getoption("--seed")
    seeds = range(metafunc.config.getoption("--seeds") // 2) if seed is None else [seed]
    if "seed" in metafunc.fixturenames:
        metafunc.parametrize("seed", seeds)


def test_timers_and_expiry_are_those_of_a_sequential_run(seed: int) -> None:
    try:
        simulate(seed)
    except BaseException:
        print(f"replay with --seed {seed}")  # noqa: T201
        raise
