"""How often Python looks for cyclic garbage while an operator runs."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from async_op.threads.garbage import GARBAGE_MIN, rare_collections


@pytest.fixture(autouse=True)
def the_threshold_is_kept() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


@pytest.mark.parametrize(("before", "inside"), [(700, GARBAGE_MIN), (0, 0), (2 * GARBAGE_MIN, 2 * GARBAGE_MIN)])
def test_collections_become_rare_and_as_they_were(before: int, inside: int) -> None:
    gc.set_threshold(before, 7, 5)
    with pytest.raises(ValueError, match="no"), rare_collections():
        assert gc.get_threshold() == (inside, 7, 5)
        raise ValueError("no")
    assert gc.get_threshold() == (before, 7, 5)


def test_of_two_that_overlap_the_first_sets_it_back_and_the_second_leaves_it() -> None:
    gc.set_threshold(700, 7, 5)
    first, second = rare_collections(), rare_collections()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    second.__exit__(None, None, None)
    assert gc.get_threshold() == (700, 7, 5)
