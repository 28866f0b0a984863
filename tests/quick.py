"""Which cases of a test, and how many seeds of a long simulation, `make test` runs."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest


def first_is_quick(cases: Iterable[Any]) -> list[Any]:
    """Return the cases of a parametrised test: all but the first are marked `thorough`."""
    return first_are_quick(1, cases)


def first_are_quick(count: int, cases: Iterable[Any]) -> list[Any]:
    """Return the cases of a parametrised test: all but the first ones are marked `thorough`."""
    cases = list(cases)
    marked = [case if isinstance(case, tuple) else (case,) for case in cases[count:]]
    return [*cases[:count], *(pytest.param(*case, marks=pytest.mark.thorough) for case in marked)]


def in_turn(places: Iterable[Any]) -> list[Any]:
    """Return the places where each rule holds: `make test` tries a rule at one of them, the next rule at another.

    For the parameters of a fixture: kinds of sinks, of stores, of backends.
    """
    places = [*places]
    marks = [pytest.mark.in_turn(turn, len(places)) for turn in range(len(places))]
    return [pytest.param(place, marks=mark) for place, mark in zip(places, marks, strict=True)]


def is_left_out(item: pytest.Item) -> bool:
    """Return whether a quick run leaves a test out."""
    rule = zlib.crc32(item.nodeid.partition("[")[0].encode())
    turns = (mark.args for mark in item.iter_markers("in_turn"))
    return item.get_closest_marker("thorough") is not None or any(rule % count != turn for turn, count in turns)


def few_are_quick(cases: Iterable[tuple[Any, Any]]) -> list[Any]:
    """Return the cases of a rule and a place that it holds at: all but few are marked `thorough`.

    Each rule stays at the place that has had the fewest of them until then, and each place has one.
    """
    cases = list(cases)
    places_of: dict[Any, list[Any]] = {}
    for place, rule in cases:
        places_of.setdefault(rule, []).append(place)
    counts = Counter({place: 0 for place, _ in cases})
    quick: set[tuple[Any, Any]] = set()
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
