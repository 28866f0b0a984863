"""How long an element has been in the operator."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from async_op.subtask.subtask import COARSENESS, MARKS_MAX, RESOLUTION_SECONDS, Ages


@given(st.lists(st.tuples(st.integers(1, 5), st.floats(0, 10)), max_size=20))
def test_an_age_is_that_of_the_mark_after_the_element(steps: list[tuple[int, float]]) -> None:
    ages, marks, number, now = Ages(), [], 0, 0.0
    for more, seconds in steps:
        number, now = number + more, now + seconds
        ages.mark(number, now)
        marks.append((number, now))
    for oldest in range(number):
        came = next(moment for following, moment in marks if following > oldest)
        age = ages.of(oldest, now + 1.0)
        assert age is not None
        assert -1e-9 <= age - (now + 1.0 - came) <= RESOLUTION_SECONDS + 1e-9


def test_the_age_of_a_timer_which_nobody_has_marked_counts_from_the_first_look() -> None:
    ages = Ages()
    assert ages.of(5, 1.0) == 0.0
    assert ages.of(5, 4.0) == 3.0
    assert ages.of(None, 5.0) is None


def test_a_busy_operator_leaves_a_bounded_number_of_marks() -> None:
    ages = Ages()
    for number in range(10_000):
        ages.mark(number, number * RESOLUTION_SECONDS / 1000)
    assert len(ages._marks) <= 11


def test_a_call_that_hangs_leaves_a_bounded_number_of_marks_and_only_makes_ages_coarser() -> None:
    ages, came, now = Ages(), [], 0.0
    for number in range(20_000):
        came.append(now)
        ages.mark(number + 1, now)
        assert len(ages._marks) <= MARKS_MAX
        now += 3600.0 if number % 5000 == 4999 else 0.15  # now and then, there is no input for an hour
    for number in (0, 1, 2, 4999, 5000, 7777, 12_345, 19_999):
        age = ages.of(number, now)
        assert age is not None
        assert -1e-6 <= age - (now - came[number]) <= COARSENESS * now
    assert len(ages._marks) == 1
