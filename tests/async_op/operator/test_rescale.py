"""What is in flight at another parallelism: where each element goes, in which order, behind which watermark."""

from __future__ import annotations

from typing import Any

import pytest

from async_op import Record, Watermark
from keygroups import key_group_of, range_of
from snapshots import Snapshot
from tests.async_op.kit import BOTH, Service, commit, opened, settle

GROUPS = 16


def key_of(value: str) -> str:
    """Values are written as key:number."""
    return value.partition(":")[0]


def keys_of_group_range(first: int, last: int, count: int) -> list[str]:
    """Return keys whose key groups lie in a range."""
    names = (f"k{number}" for number in range(10_000))
    found = (name for name in names if first <= key_group_of(name, GROUPS) <= last)
    return [next(found) for _ in range(count)]


def keys_of_subtask(subtask: int, parallelism: int, count: int = 1) -> list[str]:
    owned = range_of(subtask, parallelism, GROUPS)
    return keys_of_group_range(owned.start, owned.end, count)


def subtask(index: int, parallelism: int) -> dict[str, Any]:
    return {"subtask_index": index, "parallelism": parallelism, "max_parallelism": GROUPS, "key_by": key_of}


@pytest.mark.behaviour("results are emitted exactly once, calls are made at least once")
async def test_the_idempotency_key_is_the_same_after_every_restore() -> None:
    keys: dict[Any, set[str]] = {"made up": set(), "given": set()}
    snapshot: Snapshot | None = None
    for parallelism in (1, 1, 2, 3):
        cuts = []
        for index in range(parallelism):
            service = Service()
            restore = None if snapshot is None else snapshot.restore(index, parallelism)
            options = {"parallelism": parallelism, "subtask_index": index, "max_parallelism": GROUPS}
            async with opened(service, restore=restore, **options) as bench:
                if restore is None:
                    await bench.operator.process("made up")
                    await bench.operator.process("given", element_id="row-1")
                    await settle()
                for call in service.calls:
                    keys[call.value].add(call.ctx.idempotency_key)
                cuts.append(await bench.operator.snapshot())
        snapshot = await commit(*cuts)

    assert len(keys["made up"]) == 1
    assert keys["given"] == {"row-1"}


@pytest.mark.behaviour("after a rescale an element is where its key is; only those without one are dealt")
@pytest.mark.parametrize("parallelism", [1, 2, 3, 5, 16])
@BOTH
async def test_after_a_rescale_an_element_is_where_its_key_is(parallelism: int, mode: str) -> None:
    values = [f"k{number}:{number}" for number in range(60)]
    cuts = []
    for index in range(4):
        async with opened(Service(), mode=mode, **subtask(index, 4)) as bench:
            owned = range_of(index, 4, GROUPS)
            await bench.feed(*[value for value in values if key_group_of(key_of(value), GROUPS) in owned])
            cuts.append(await bench.operator.snapshot())
    snapshot = await commit(*cuts)

    found = []
    for index in range(parallelism):
        service = Service()
        restore = snapshot.restore(index, parallelism)
        async with opened(service, mode=mode, restore=restore, **subtask(index, parallelism)):
            owned = range_of(index, parallelism, GROUPS)
            assert [key_group_of(key_of(value), GROUPS) in owned for value in service.called] == [True] * len(
                service.called
            )
            found += service.called
    assert sorted(found) == sorted(values)


@pytest.mark.behaviour("after a rescale an element is where its key is; only those without one are dealt")
async def test_elements_without_a_key_are_assigned_in_runs_of_equal_length() -> None:
    cuts = []
    for index, count in enumerate((3, 4)):
        async with opened(Service(), parallelism=2, subtask_index=index, max_parallelism=GROUPS) as bench:
            await bench.feed(*[f"{index}-{number}" for number in range(count)])
            cuts.append(await bench.operator.snapshot())
    snapshot = await commit(*cuts)

    shares = []
    for index in range(3):
        service = Service()
        options = {"parallelism": 3, "subtask_index": index, "max_parallelism": GROUPS}
        async with opened(service, restore=snapshot.restore(index, 3), **options):
            shares.append(service.called)
    assert shares == [["0-0", "0-1", "0-2"], ["1-0", "1-1"], ["1-2", "1-3"]]


@pytest.mark.behaviour("after a rescale an element is where its key is; only those without one are dealt")
async def test_elements_without_a_key_stay_where_they_are_at_the_same_parallelism() -> None:
    cuts = []
    for index, values in enumerate((["a"], ["b", "c", "d"])):
        async with opened(Service(), parallelism=2, subtask_index=index, max_parallelism=GROUPS) as bench:
            await bench.feed(*values)
            cuts.append(await bench.operator.snapshot())
    snapshot = await commit(*cuts)

    for index, values in enumerate((["a"], ["b", "c", "d"])):
        service = Service()
        options = {"parallelism": 2, "subtask_index": index, "max_parallelism": GROUPS}
        async with opened(service, restore=snapshot.restore(index), **options):
            assert service.called == values


@pytest.mark.behaviour("after a rescale the order of a key and the place of a watermark are kept")
@BOTH
async def test_merged_subtasks_keep_the_order_within_each_and_the_lower_watermark(mode: str) -> None:
    """The slow subtask had seen no watermark, so none leaves before its records have."""
    [slow], [fast] = keys_of_subtask(0, 2), keys_of_subtask(1, 2)
    async with opened(Service(), mode=mode, **subtask(0, 2)) as bench:
        await bench.feed(Record(f"{slow}:1", 1), Watermark(5), Record(f"{slow}:2", 6))
        cuts = [await bench.operator.snapshot()]
    async with opened(Service(), mode=mode, **subtask(1, 2)) as bench:
        await bench.feed(Watermark(5), Record(f"{fast}:1", 7), Watermark(9), Record(f"{fast}:2", 10))
        cuts.append(await bench.operator.snapshot())
    snapshot = await commit(*cuts)

    service = Service()
    async with opened(service, mode=mode, restore=snapshot.restore(0, 1), **subtask(0, 1)) as bench:
        by_key = {key: [value for value in service.called if key_of(value) == key] for key in (slow, fast)}
        assert by_key == {slow: [f"{slow}:1", f"{slow}:2"], fast: [f"{fast}:1", f"{fast}:2"]}
        await service.answer(*reversed(service.called))

        watermarks = [output for output in bench.shown if isinstance(output, Watermark)]
        assert watermarks == [Watermark(5)]
        assert bench.shown.index(f"{slow}:1") < bench.shown.index(Watermark(5))
        await bench.feed(Watermark(9))
        assert bench.shown[-1] == Watermark(9)


@pytest.mark.behaviour("after a rescale the order of a key and the place of a watermark are kept")
@BOTH
async def test_both_halves_of_a_split_subtask_keep_its_watermarks(mode: str) -> None:
    low, high = keys_of_subtask(0, 2), keys_of_subtask(1, 2)
    async with opened(Service(), mode=mode, **subtask(0, 1)) as bench:
        await bench.feed(Watermark(1), f"{low[0]}:1", f"{high[0]}:1", Watermark(5), f"{high[0]}:2")
        snapshot = await commit(await bench.operator.snapshot())

    for index, expected in enumerate(
        ([f"{low[0]}:1", Watermark(5)], [f"{high[0]}:1", Watermark(5), f"{high[0]}:2"]),
    ):
        service = Service()
        restore = snapshot.restore(index, 2)
        async with opened(service, mode=mode, restore=restore, **subtask(index, 2)) as bench:
            await service.answer(*reversed(service.called))
            assert bench.shown == expected
