"""The form of idempotency keys: no two elements share one, and services can store it."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from async_op.in_flight.idempotency_keys import KEY_CHARACTERS_MAX, Identity, partition_text, timer_id
from keygroups.state.timers import Timer

NAMES = st.text(max_size=300) | st.text("/a@~%# é\udc80", max_size=200)
STEPS = st.none() | st.from_regex("[a-z0-9_-]{1,64}", fullmatch=True)
LINEAGES = st.from_regex("[a-z0-9.:_]{1,64}", fullmatch=True)
PLACES = st.tuples(NAMES, st.integers(0, 2**63), st.lists(st.integers(0, 99), max_size=2))


def key_of(place: tuple[str, int, list[int]], lineage: str = "ns", step: str | None = "step") -> str:
    name, position, numbers = place
    return Identity(lineage, step).key_of("/".join([f"{partition_text(name)}@{position}", *map(str, numbers)]))


@given(PLACES, LINEAGES, STEPS)
def test_a_key_is_short_visible_ascii_and_always_the_same(
    place: tuple[str, int, list[int]], lineage: str, step: str | None
) -> None:
    key = key_of(place, lineage, step)
    assert re.fullmatch("[!-~]+", key)
    assert len(key) <= KEY_CHARACTERS_MAX
    assert key == key_of(place, lineage, step)
    assert key.startswith(f"{lineage}/" if step is None else f"{lineage}/{step}/")


@given(st.lists(PLACES, unique_by=lambda place: (place[0], place[1], tuple(place[2])), min_size=2, max_size=8))
def test_no_two_elements_of_a_step_share_a_key(places: list[tuple[str, int, list[int]]]) -> None:
    assert len({key_of(place) for place in places}) == len(places)


@given(
    st.lists(
        st.tuples(st.booleans(), st.integers(0, 2**40), st.text(max_size=3) | st.integers() | st.floats(0, 1)),
        unique_by=lambda one: (one[0], one[1], repr(one[2])),
        min_size=2,
        max_size=8,
    )
)
def test_no_two_timers_share_a_key_nor_a_timer_with_an_element(timers: list[tuple[bool, int, object]]) -> None:
    ids = {timer_id(Timer(at, is_event), key) for is_event, at, key in timers}  # type: ignore[arg-type]
    assert len(ids) == len(timers)
    assert not any("@" in one for one in ids)


def test_paths_stay_readable_and_long_ones_keep_their_end() -> None:
    assert Identity("ns", "charge").key_of(f"{partition_text('orders/0')}@17") == "ns/charge/orders/0@17"
    long = partition_text("s3://bucket/" + "deep/" * 60 + "part-0001.jsonl")
    assert long.endswith("deep/part-0001.jsonl")
    assert long != partition_text("s3://bucket/" + "deep/" * 61 + "part-0001.jsonl")


def test_ids_that_a_caller_has_made_are_the_keys_and_its_timers_are_in_the_lineage() -> None:
    one, other = Identity.of_run(None), Identity.of_run(None)
    assert one.key_of("row-1") == "row-1"
    timer = Timer(5, True)
    assert one.timer_id(timer, "a") != other.timer_id(timer, "a")
    assert Identity.of_run(one.lineage).timer_id(timer, "a") == one.timer_id(timer, "a")
