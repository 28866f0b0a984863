from __future__ import annotations

import json
from pathlib import Path

import pytest

from keygroups import ConfigError, KeyGroupRange, default_max_parallelism, range_of, subtask_of

FLINK = Path(__file__).parent / "vectors" / "flink_ranges.jsonl"


@pytest.mark.parametrize(
    ("start", "end"), [(0, 0), (0, 1), (1, 2), (42, 42), (3, 7), (0, 32767), (32766, 32767)], ids=str
)
def test_a_range_holds_both_its_ends_and_all_between(start: int, end: int) -> None:
    owned = KeyGroupRange(start, end)

    assert len(owned) == end - start + 1
    assert list(owned) == list(range(start, end + 1))
    assert start in owned
    assert end in owned
    assert start - 1 not in owned
    assert end + 1 not in owned


@pytest.mark.parametrize(
    ("start", "end", "name"), [(-3, 2, "start"), (5, 4, "end"), (0, 32768, "end"), (32768, 32768, "start")]
)
def test_an_impossible_range_is_refused(start: int, end: int, name: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        KeyGroupRange(start, end)
    assert refusal.value.name == name


def test_a_range_is_of_integers() -> None:
    with pytest.raises(ConfigError, match=r"end=1\.5: must be an integer"):
        KeyGroupRange(0, 1.5)  # type: ignore[arg-type]


def test_a_range_is_a_value() -> None:
    assert KeyGroupRange(3, 7) == KeyGroupRange(3, 7)
    assert len({KeyGroupRange(3, 7), KeyGroupRange(3, 7)}) == 1
    with pytest.raises(AttributeError):
        KeyGroupRange(3, 7).start = 1  # type: ignore[misc]


@pytest.mark.parametrize(
    ("one", "other", "common"),
    [
        ((0, 10), (3, 7), (3, 7)),
        ((0, 10), (0, 10), (0, 10)),
        ((0, 10), (5, 20), (5, 10)),
        ((3, 12), (0, 10), (3, 10)),
        ((0, 5), (5, 9), (5, 5)),
        ((0, 5), (6, 10), None),
    ],
    ids=str,
)
def test_the_intersection_holds_what_is_in_both(
    one: tuple[int, int], other: tuple[int, int], common: tuple[int, int] | None
) -> None:
    expected = None if common is None else KeyGroupRange(*common)

    assert KeyGroupRange(*one).intersection(KeyGroupRange(*other)) == expected
    assert KeyGroupRange(*other).intersection(KeyGroupRange(*one)) == expected


def test_subtasks_own_the_same_ranges_as_in_flink() -> None:
    for vector in map(json.loads, FLINK.read_text().splitlines()):
        parallelism, max_parallelism = vector["parallelism"], vector["max_parallelism"]
        owned = [range_of(subtask, parallelism, max_parallelism) for subtask in range(parallelism)]
        assert [[one.start, one.end] for one in owned] == vector["ranges"]


@pytest.mark.parametrize(
    ("parallelism", "expected"),
    [(1, 128), (85, 128), (86, 256), (171, 256), (172, 512), (1000, 2048), (21845, 32768), (32768, 32768)],
)
def test_the_default_max_parallelism_leaves_room_to_grow(parallelism: int, expected: int) -> None:
    assert default_max_parallelism(parallelism) == expected


@pytest.mark.parametrize("parallelism", [0, -1, 129])
def test_an_impossible_parallelism_is_refused(parallelism: int) -> None:
    with pytest.raises(ConfigError, match=f"parallelism={parallelism}: must be between 1 and 128; max_parallelism=128"):
        range_of(0, parallelism, 128)
    with pytest.raises(ConfigError, match=f"parallelism={parallelism}"):
        subtask_of(0, parallelism, 128)


@pytest.mark.parametrize("max_parallelism", [0, -1, 32769])
def test_an_impossible_max_parallelism_is_refused(max_parallelism: int) -> None:
    with pytest.raises(ConfigError, match=f"max_parallelism={max_parallelism}: must be between 1 and 32768"):
        range_of(0, 1, max_parallelism)


@pytest.mark.parametrize("parallelism", [0, 32769])
def test_no_default_is_made_for_an_impossible_parallelism(parallelism: int) -> None:
    with pytest.raises(ConfigError, match=f"parallelism={parallelism}"):
        default_max_parallelism(parallelism)


@pytest.mark.parametrize("outside", [-1, 4])
def test_there_is_no_range_of_another_subtask(outside: int) -> None:
    with pytest.raises(ConfigError, match=f"subtask_index={outside}: must be between 0 and 3"):
        range_of(outside, 4, 128)


@pytest.mark.parametrize("outside", [-1, 128])
def test_there_is_no_subtask_of_another_key_group(outside: int) -> None:
    with pytest.raises(ConfigError, match=f"key_group={outside}: must be between 0 and 127"):
        subtask_of(outside, 4, 128)
