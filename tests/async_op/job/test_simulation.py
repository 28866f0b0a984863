"""Jobs in virtual time, each with another seed.

`--seeds 2000` runs 200 of them, because a job takes longer than an operator; `--seed 17` replays one.
"""

from __future__ import annotations

import pytest

from tests.async_op.job.rules import SEEDS
from tests.async_op.job.simulation.run import simulate
from tests.quick import seeds_of_long_runs


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    seed = metafunc.config.getoption("--seed")
    count = seeds_of_long_runs(metafunc.config, 10, fewest=40)
    # The seeds that notice a mutant are among them: each of them must pass without it.
    noticing = () if metafunc.config.getoption("--quick") else SEEDS
    metafunc.parametrize("seed", sorted({*range(count), *noticing}) if seed is None else [seed])


def test_every_output_comes_exactly_once(seed: int) -> None:
    simulate(seed)
