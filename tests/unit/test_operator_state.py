from __future__ import annotations

import pytest

from keygroups import ConfigError
from keygroups.operator_state import broadcast, split, union


def test_split_deals_contiguous_runs_across_the_old_subtasks() -> None:
    assert split({"a": [["a0", "a1", "a2"], ["b0", "b1", "b2", "b3"]]}, 3) == {
        "a": [["a0", "a1", "a2"], ["b0", "b1"], ["b2", "b3"]]
    }


def test_a_subtask_may_take_the_tail_of_one_list_and_the_head_of_the_next() -> None:
    assert split({"a": [[1], [2, 3], [4]]}, 2) == {"a": [[1, 2], [3, 4]]}


def test_the_next_state_begins_where_the_extra_items_of_the_last_one_ended() -> None:
    dealt = split({"a": [[1, 2, 3], [4, 5, 6, 7]], "b": [[1, 2], [3, 4, 5]]}, 3)

    assert dealt["b"] == [[5], [1, 2], [3, 4]]
    assert [len(a) + len(b) for a, b in zip(dealt["a"], dealt["b"], strict=True)] == [4, 4, 4]


def test_split_does_not_depend_on_the_order_in_which_states_are_given() -> None:
    a, b = [[1, 2, 3], [4]], [[5], [6, 7, 8]]
    assert split({"b": b, "a": a}, 3) == split({"a": a, "b": b}, 3)


def test_split_leaves_an_unchanged_parallelism_alone() -> None:
    uneven = [[1, 2, 3, 4], [], [5]]
    assert split({"a": uneven, "b": [[1], [], []]}, 3) == {"a": uneven, "b": [[1], [], []]}


def test_split_leaves_subtasks_without_items_when_there_are_few() -> None:
    assert split({"a": [[1], []], "b": [[2], []]}, 3) == {"a": [[1], [], []], "b": [[], [2], []]}


def test_union_gives_everything_to_everyone() -> None:
    assert union([[1], [], [2, 3]], 2) == [[1, 2, 3], [1, 2, 3]]


def test_broadcast_reads_every_old_copy_when_it_can() -> None:
    assert broadcast([["old 0"], ["old 1"]], 3) == [["old 0"], ["old 1"], ["old 0"]]
    assert broadcast([["old 0"], ["old 1"]], 1) == [["old 0"]]


def test_broadcast_needs_a_copy() -> None:
    with pytest.raises(ConfigError, match="at least one old subtask"):
        broadcast([], 2)


def test_the_result_shares_no_list_with_the_argument_nor_among_subtasks() -> None:
    state = [[1], [2]]
    split({"a": state}, 2)["a"][0].append(3)
    broadcast(state, 2)[0].append(3)
    first, second = union(state, 2)
    first.append(3)

    assert state == [[1], [2]]
    assert second == [1, 2]


@pytest.mark.parametrize("parallelism", [0, -1, 32769])
def test_an_impossible_parallelism_is_refused(parallelism: int) -> None:
    for redistribute in (union, broadcast):
        with pytest.raises(ConfigError, match=f"parallelism={parallelism}"):
            redistribute([[1]], parallelism)
    with pytest.raises(ConfigError, match=f"parallelism={parallelism}"):
        split({"a": [[1]]}, parallelism)
