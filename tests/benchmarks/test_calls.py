"""How far an element goes through the code: counts that are the same on every machine."""

from __future__ import annotations

import pytest

from benchmarks.calls import DOORS, per_element

AT_MOST = {"stream": (20, 18), "host": (22, 20), "job": (28, 24)}
"""Calls and changes of module. More of them make an element dearer, and the code harder to follow."""


@pytest.mark.parametrize("door", DOORS)
def test_an_element_goes_no_further_than_it_must(door: str) -> None:
    calls, changes = per_element(DOORS[door], elements=500)

    calls_max, changes_max = AT_MOST[door]
    assert calls <= calls_max
    assert changes <= changes_max
