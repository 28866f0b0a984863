"""Jobs of several processes in virtual time: the same as with one, and children that die at any moment.

The children live on the loop of their parent and get all they get as bytes, over links with delays.
"""

from __future__ import annotations

import pytest

from tests.async_op.job.simulation.run import simulate
from tests.quick import first_is_quick, seeds_of_long_runs


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "seed" in metafunc.fixturenames:
        seed = metafunc.config.getoption("--seed")
        count = seeds_of_long_runs(metafunc.config, 5, fewest=10)
        metafunc.parametrize("seed", range(count) if seed is None else [seed])


@pytest.mark.parametrize("processes", first_is_quick([2, 3]))
def test_every_output_comes_exactly_once_from_several_processes(seed: int, processes: int) -> None:
    simulate(seed, processes)
