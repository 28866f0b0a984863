"""What becomes of an element whose key is null, has no hash or cannot be computed: the error policy decides."""

from __future__ import annotations

import enum
from typing import Any

import pytest

from async_op import AsyncDataStream, AsyncFunction, DeadLetter
from async_op.dead_letters import InPlace
from keygroups import KeyGroupOutOfRange, NullKey, UnsupportedKey, ValueState
from tests.async_op.kit import BOTH, Instant, Service, commit, opened

MODES = pytest.mark.parametrize("mode", ["ordered", "unordered", "key_ordered"])
COUNT = ValueState("count", default=0)
BY_USER: dict[str, Any] = {"key_by": lambda value: value["user"]}


def _row(number: int, user: object = "ann") -> dict[str, Any]:
    return {"id": number, "user": user}


class Color(enum.StrEnum):
    RED = "red"


class Counting(AsyncFunction):
    states = (COUNT,)

    async def async_invoke(self, value: dict[str, Any], ctx: Any) -> list[Any]:
        count = ctx.state(COUNT)
        count.update(count.value() + 1)
        return [(value["id"], count.value())]


@MODES
@pytest.mark.parametrize("capacity", [1, 7])
@pytest.mark.parametrize("together", [True, False])
async def test_elements_without_a_key_are_skipped_and_counted(mode: str, capacity: int, together: bool) -> None:
    rows = [_row(n, None if n % 3 else "ann") for n in range(60)]
    async with opened(Instant(), mode=mode, capacity=capacity, on_error="skip", **BY_USER) as bench:
        if together:
            await bench.operator.process_all((row, None, None) for row in rows)
        else:
            for row in rows:
                await bench.operator.process(row)
        await bench.operator.finish()

        assert bench.shown == rows[::3]
        statistics = bench.operator.statistics()
        assert (statistics.skipped, statistics.calls, statistics.in_flight) == (40, 20, 0)


async def test_the_state_of_other_keys_continues_as_if_they_were_not_there() -> None:
    rows = [_row(n, ("ann", None, "bob")[n % 3]) for n in range(30)]
    async with opened(Counting(), on_error="skip", **BY_USER) as bench:
        await bench.operator.process_all((row, None, None) for row in rows)
        await bench.operator.finish()

        assert sorted(bench.shown) == [(n, n // 3 + 1) for n in range(30) if n % 3 != 1]


BAD_KEYS: list[tuple[Any, type[Exception]]] = [
    (None, NullKey),
    (("ann", None), NullKey),
    ({"ann"}, UnsupportedKey),
    (["ann"], UnsupportedKey),
    (2**64, UnsupportedKey),
    (Color.RED, UnsupportedKey),
    (("ann", Color.RED), UnsupportedKey),
    ("half an emoji \ud83d", UnsupportedKey),
]


@pytest.mark.parametrize(("key", "kind"), BAD_KEYS, ids=repr)
async def test_a_dead_letter_tells_why_there_is_no_key_and_that_no_call_was_made(
    key: Any, kind: type[Exception]
) -> None:
    letters: list[DeadLetter] = []
    options: dict[str, Any] = {"on_error": "dead_letter", "dead_letters": letters.append, **BY_USER}
    async with opened(Instant(), **options) as bench:
        await bench.operator.process(_row(7, key), 42, "row-7")
        await bench.operator.finish()

        (letter,) = letters
        assert (letter.value, letter.timestamp, letter.key) == (_row(7, key), 42, None)
        assert (letter.idempotency_key, letter.attempts) == ("row-7", 0)
        assert type(letter.error) is kind
        assert bench.operator.statistics().dead_letters == 1


async def test_a_key_by_that_raises_is_the_failure_of_its_element() -> None:
    letters: list[DeadLetter] = []
    options: dict[str, Any] = {"on_error": "dead_letter", "dead_letters": letters.append, **BY_USER}
    async with opened(Instant(), **options) as bench:
        await bench.operator.process_all([({}, None, None), (_row(1), None, None)])
        await bench.operator.finish()

        assert bench.shown == [_row(1)]
        assert [type(letter.error) for letter in letters] == [KeyError]


@pytest.mark.parametrize(("key", "kind"), BAD_KEYS, ids=repr)
async def test_without_another_policy_the_error_names_the_element(key: Any, kind: type[Exception]) -> None:
    async with opened(Instant(), **BY_USER) as bench:
        with pytest.raises(kind) as refusal:
            await bench.operator.process(_row(7, key), element_id="row-7")
        if kind is NullKey:
            assert "'id': 7" in str(refusal.value)
        assert "(id row-7)" in f"{refusal.value} {refusal.value.__notes__}"
        await bench.operator.process(_row(8))
        await bench.operator.finish()

        assert bench.shown == [_row(8)]


@pytest.mark.parametrize("on_error", ["fail", "skip"])
async def test_a_key_of_another_subtask_is_never_dropped(on_error: str) -> None:
    options: dict[str, Any] = {"parallelism": 2, "max_parallelism": 2, "on_error": on_error, **BY_USER}
    async with opened(Instant(), **options) as bench:
        with pytest.raises(KeyGroupOutOfRange):
            await bench.operator.process_all((_row(n, n), None, None) for n in range(50))


async def test_an_error_of_what_takes_dead_letters_ends_the_operator() -> None:
    def refuse(_: DeadLetter) -> None:
        raise OSError("the disk is full")

    options: dict[str, Any] = {"on_error": "dead_letter", "dead_letters": refuse, **BY_USER}
    async with opened(Instant(), **options) as bench:
        await bench.operator.process(_row(1, None))
        with pytest.raises(OSError, match="the disk is full"):
            await bench.operator.process(_row(2))


@BOTH
async def test_its_dead_letter_keeps_the_place_of_the_element_over_a_restart(mode: str) -> None:
    in_place = InPlace(lambda letter: [f"letter {letter.value['id']}"])
    options: dict[str, Any] = {"mode": mode, "on_error": "dead_letter", "dead_letters": in_place, **BY_USER}
    async with opened(Service(), **options) as bench:
        await bench.feed(_row(1), _row(2, None))
        left = bench.shown
        snapshot = await bench.operator.snapshot()
    assert left == ([] if mode == "ordered" else ["letter 2"])
    stored = await commit(snapshot)
    async with opened(Instant(), restore=stored.restore(0), **options) as bench:
        await bench.operator.finish()
        assert left + bench.shown == ([_row(1), "letter 2"] if mode == "ordered" else ["letter 2", _row(1)])


async def test_a_stream_skips_what_has_no_key() -> None:
    rows = [_row(n, None if n % 2 else "ann") for n in range(10)]
    found = [row async for row in AsyncDataStream.ordered_wait(rows, Instant(), on_error="skip", **BY_USER)]
    assert found == rows[::2]
