"""Which cases of a test, and how many seeds of a long simulation, `make test` runs."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Any
from zlib import crc32

import pytest

_CASES_MIN = 3
_CASES_PART = 8


def left_out(items: Iterable[pytest.Item]) -> set[pytest.Item]:
    """Return what a quick run leaves out: what is `thorough`, and most of the cases of tests that have many.

    A test keeps its cases if they are chosen already: some are `thorough`, they are seeds, or it is an `every_case`.
    """
    items = list(items)
    thorough = {item for item in items if item.get_closest_marker("thorough")}
    tests = defaultdict[str, list[pytest.Item]](list)
    for item in items:
        tests[item.nodeid.partition("[")[0]].append(item)
    sampled = [cases for cases in tests.values() if thorough.isdisjoint(cases) and not _is_chosen(cases[0])]
    kept = {name for cases in sampled for name in some_of([case.nodeid for case in cases])}
    return thorough | {case for cases in sampled for case in cases if case.nodeid not in kept}


def some_of(cases: Sequence[str]) -> list[str]:
    """Return an eighth of the cases of a test, but at least three: drawn, so that each of several parameters varies.

    They are the same ones each time, or else a test that fails would pass when it is run again.
    """
    count = max(_CASES_MIN, len(cases) // _CASES_PART)
    return sorted(cases, key=lambda name: (crc32(name.encode()), name))[:count]


def _is_chosen(case: pytest.Item) -> bool:
    parameters = case.callspec.params if isinstance(case, pytest.Function) and hasattr(case, "callspec") else {}
    return "seed" in parameters or case.get_closest_marker("every_case") is not None


def first_is_quick(cases: Iterable[Any]) -> list[Any]:
    """Return the cases of a parametrised test: all but the first are marked `thorough`."""
    first, *others = cases
    marked = [case if isinstance(case, tuple) else (case,) for case in others]
    return [first, *(pytest.param(*case, marks=pytest.mark.thorough) for case in marked)]


def few_are_quick(cases: Iterable[tuple[str, str]]) -> list[Any]:
    """Return the cases of a rule and a place that it holds at: all but few are marked `thorough`.

    Each rule stays at the place that has had the fewest of them until then, and each place has one.
    """
    cases = list(cases)
    places_of: dict[str, list[str]] = {}
    for place, rule in cases:
        places_of.setdefault(rule, []).append(place)
    counts = Counter({place: 0 for place, _ in cases})
    quick: set[tuple[str, str]] = set()
    for rule, places in places_of.items():
        place = min(places, key=counts.__getitem__)
        counts[place] += 1
        quick.add((place, rule))
    quick |= {next(case for case in cases if case[0] == place) for place, count in counts.items() if not count}
    return [case if case in quick else pytest.param(*case, marks=pytest.mark.thorough) for case in cases]


def seeds_of_long_runs(config: pytest.Config, divisor: int, fewest: int) -> int:
    """Return how many seeds a simulation gets whose runs take long.

    Where `--seeds` asks for few it gets all of them, or else their number by the divisor, if that is not too few.
    """
    seeds: int = config.getoption("--seeds")
    return max(min(fewest, seeds), seeds // divisor)
