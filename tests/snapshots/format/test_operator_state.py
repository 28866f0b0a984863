"""Operator state: how its items are dealt to subtasks, and how it is stored."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keygroups import ConfigError
from keygroups.operator_state import broadcast, split, union
from snapshots import OperatorStateCut, Snapshot, SubtaskSnapshot
from tests.examples import scaled
from tests.snapshot_kit import G, new_store, parts


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


@pytest.mark.usefixtures("each_backend")
class TestOperatorState:
    def snapshot(self, parallelism: int = 2) -> Snapshot:
        made = []
        for subtask, cuts in enumerate(parts({}, parallelism=parallelism)):
            states = (
                OperatorStateCut("offsets", "split", tuple((subtask, n) for n in range(subtask + 2))),
                OperatorStateCut("seen", "union", (subtask,)),
                OperatorStateCut("rules", "broadcast", ("rule", {"n": 1})),
                OperatorStateCut("none", "split", ()),
            )
            made.append(
                SubtaskSnapshot(
                    subtask_index=subtask,
                    parallelism=parallelism,
                    max_parallelism=G,
                    hash="xxhash64",
                    states=cuts.states,
                    operator_states=states,
                )
            )
        store = new_store()
        snapshot = store.write(made)
        assert store.verify().ok
        return snapshot

    @pytest.mark.parametrize("parallelism", [1, 2, 3, 7])
    def test_items_are_assigned_by_their_mode(self, parallelism: int) -> None:
        snapshot = self.snapshot()
        restores = [pickle.loads(pickle.dumps(snapshot.restore(n, parallelism))) for n in range(parallelism)]

        dealt = [restore.operator_state("offsets") for restore in restores]
        assert [item for share in dealt for item in share] == [(0, 0), (0, 1), (1, 0), (1, 1), (1, 2)]
        assert max(map(len, dealt)) - min(map(len, dealt)) <= 1
        assert [restore.operator_state("seen") for restore in restores] == [[0, 1]] * parallelism
        assert [restore.operator_state("rules") for restore in restores] == [["rule", {"n": 1}]] * parallelism
        assert [restore.operator_state("none") for restore in restores] == [[]] * parallelism
        assert restores[0].operator_state("unknown") == []

    def test_only_needed_files_are_read(self, reads: list[int]) -> None:
        snapshot = self.snapshot()
        reads.clear()
        snapshot.restore(0).operator_state("offsets")

        assert len(reads) == 2


@settings(max_examples=scaled(25))
@given(
    st.lists(st.lists(st.lists(st.integers(), max_size=5), min_size=2, max_size=2), min_size=1, max_size=5),
    st.integers(1, 9),
)
def test_what_the_subtasks_keep_of_union_lists_are_all_items_once(
    items: list[list[list[int]]], parallelism: int
) -> None:
    """Each subtask of the old run has two lists; whatever the parallelism, nothing is lost and nothing is doubled."""
    made = [
        SubtaskSnapshot(
            subtask_index=subtask,
            parallelism=len(items),
            max_parallelism=G,
            hash="xxhash64",
            operator_states=tuple(OperatorStateCut(f"list {n}", "union", tuple(one)) for n, one in enumerate(lists)),
        )
        for subtask, lists in enumerate(items)
    ]
    snapshot = new_store().write(made)
    shares = [snapshot.restore(index, parallelism) for index in range(parallelism)]
    for number in range(2):
        everything = [item for lists in items for item in lists[number]]
        kept = [share.operator_state(f"list {number}")[slice(*share.own_items[f"list {number}"])] for share in shares]
        assert all(share.operator_state(f"list {number}") == everything for share in shares)
        assert sorted(item for one in kept for item in one) == sorted(everything)  # type: ignore[type-var]
        if parallelism == len(items):
            assert kept == [lists[number] for lists in items]
        else:
            assert max(map(len, kept)) - min(map(len, kept)) <= 1
