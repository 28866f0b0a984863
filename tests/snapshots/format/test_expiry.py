"""Values whose time is over: their rows go, and the gaps that they leave in lists are kept or closed."""

from __future__ import annotations

import pyarrow as pa
import pytest

from keygroups.codec import UnreadableValue
from keygroups.state import HOLE
from snapshots.format import expiry
from snapshots.format.expiry import list_of, unexpired
from snapshots.format.schemas import EXPIRES_AT


def test_a_row_lives_until_the_millisecond_before_it_expires() -> None:
    table = pa.table({"key": ["a", "b", "c", "d"], EXPIRES_AT: pa.array([9, 10, 11, None], pa.int64())})

    assert unexpired(table, 10).column("key").to_pylist() == ["c", "d"]


def test_rows_without_a_time_all_live() -> None:
    table = pa.table({"key": ["a"]})

    assert unexpired(table, 10) is table


@pytest.mark.parametrize("has_ttl", [False, True])
def test_a_list_without_a_time_to_live_has_all_its_elements(has_ttl: bool) -> None:
    assert list(list_of({1: "b", 0: "a"}, stored_with_ttl=False, has_ttl=has_ttl)) == ["a", "b"]
    for held in ({1: "b"}, {0: "a", 2: "c"}):
        with pytest.raises(UnreadableValue, match=r"\(an element of a list is missing\)"):
            list_of(held, stored_with_ttl=False, has_ttl=has_ttl)


def test_a_list_that_loses_its_time_to_live_closes_its_gaps() -> None:
    assert list(list_of({5: "f", 2: "c"}, stored_with_ttl=True, has_ttl=False)) == ["c", "f"]


def test_a_list_with_a_time_to_live_keeps_every_position() -> None:
    assert list(list_of({3: "d", 1: "b"}, stored_with_ttl=True, has_ttl=True)) == [HOLE, "b", HOLE, "d"]


def test_too_many_gaps_are_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expiry, "LIST_HOLES_MAX", 3)

    assert list(list_of({3: "d"}, stored_with_ttl=True, has_ttl=True)) == [HOLE, HOLE, HOLE, "d"]
    with pytest.raises(UnreadableValue, match=r"\(of 5 elements of a list 1 are left\)"):
        list_of({4: "e"}, stored_with_ttl=True, has_ttl=True)
