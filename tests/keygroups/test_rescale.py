from __future__ import annotations

import re

import pytest

from keygroups import ConfigError, KeyGroupRange, Move, plan_rescale


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


def test_a_plan_is_a_table_in_a_notebook() -> None:
    html = plan_rescale(2, 3, 8)._repr_html_()

    assert "from parallelism 2 to 3, 8 key groups" in html
    assert re.findall("<th[^>]*>([^<]*)</th>", html) == ["from subtask", "to subtask", "first", "last"]
    cells = re.findall("<td[^>]*>([^<]*)</td>", html)
    assert [tuple(map(int, cells[place : place + 4])) for place in range(0, len(cells), 4)] == [
        (0, 0, 0, 2),
        (0, 1, 3, 3),
        (1, 1, 4, 5),
        (1, 2, 6, 7),
    ]
