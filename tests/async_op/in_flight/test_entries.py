"""The entries of the queue: one made alone and one made among many are the same."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from async_op.in_flight.entries import Entry, add_entries, new_entry

ELEMENTS = st.tuples(st.integers(), st.none() | st.integers(), st.none() | st.text())


@given(st.lists(ELEMENTS, max_size=4), st.integers(0, 2**40))
def test_an_entry_made_among_many_is_the_one_made_alone(
    elements: list[tuple[int, int | None, str | None]], first: int
) -> None:
    entries: list[Entry] = []
    add_entries(entries, elements, first)
    alone = [new_entry(*element, sequence) for sequence, element in enumerate(elements, first)]
    for made, expected in zip(entries, alone, strict=True):
        assert slots_of(made) == slots_of(expected)


def slots_of(entry: Entry) -> dict[str, Any]:
    """Return what is set; the identity of a key and the segment are set later, if at all."""
    return {slot: getattr(entry, slot) for slot in Entry.__slots__ if hasattr(entry, slot)}
