"""Which cases of a test, and how many seeds of a long simulation, `make test` runs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def first_is_quick(cases: Iterable[Any]) -> list[Any]:
    """Return the cases of a parametrised test: all but the first are marked `thorough`."""
    first, *others = cases
    marked = [case if isinstance(case, tuple) else (case,) for case in others]
    return [first, *(pytest.param(*case, marks=pytest.mark.thorough) for case in marked)]


def seeds_of_long_runs(config: pytest.Config, divisor: int, fewest: int) -> int:
    """Return how many seeds a simulation gets whose runs take long.

    Where `--seeds` asks for few it gets all of them, or else their number by the divisor, if that is not too few.
    """
    seeds: int = config.getoption("--seeds")
    return max(min(fewest, seeds), seeds // divisor)
