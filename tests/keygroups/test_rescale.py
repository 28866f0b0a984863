from __future__ import annotations

import pytest

from keygroups import ConfigError, KeyGroupRange, Move, plan_rescale


@pytest.mark.feature("what moves in a rescale")
def test_scaling_up_splits_the_old_ranges() -> None:
    plan = plan_rescale(2, 3, 10)

    assert (plan.old_parallelism, plan.new_parallelism, plan.max_parallelism) == (2, 3, 10)
    assert plan.moves == (
        Move(0, 0, KeyGroupRange(0, 3)),
        Move(0, 1, KeyGroupRange(4, 4)),
        Move(1, 1, KeyGroupRange(5, 6)),
        Move(1, 2, KeyGroupRange(7, 9)),
    )
    assert plan.moved_key_groups == 4


def test_scaling_down_is_the_reverse_of_scaling_up() -> None:
    up = plan_rescale(3, 7, 128)
    down = plan_rescale(7, 3, 128)

    assert [(move.target_subtask, move.source_subtask, move.key_groups) for move in down.moves] == [
        (move.source_subtask, move.target_subtask, move.key_groups) for move in up.moves
    ]
    assert up.moved_key_groups == down.moved_key_groups


def test_nothing_moves_at_the_same_parallelism() -> None:
    plan = plan_rescale(4, 4, 128)

    assert [(move.source_subtask, move.target_subtask) for move in plan.moves] == [(0, 0), (1, 1), (2, 2), (3, 3)]
    assert plan.moved_key_groups == 0


@pytest.mark.parametrize(("old", "new"), [(0, 1), (1, 0), (129, 1), (1, 129)])
def test_an_impossible_parallelism_is_refused(old: int, new: int) -> None:
    with pytest.raises(ConfigError, match="parallelism="):
        plan_rescale(old, new, 128)
