"""Snapshots of what is in flight, and how an operator goes on from one, at the same or at another parallelism."""

from __future__ import annotations

from typing import Any

import pytest

from async_op import Record, Watermark
from keygroups import key_group_of, range_of
from snapshots import Snapshot
from tests.operator.kit import Bench, Instant, Service, commit, new_store, opened, settle, shown_element

BOTH = pytest.mark.parametrize("mode", ["ordered", "unordered"])
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


@BOTH
async def test_pending_elements_are_called_again_in_their_order_and_before_new_ones(mode: str) -> None:
    async with opened(Service(), mode=mode, capacity=4) as bench:
        await bench.feed(*range(1, 5))
        snapshot = await commit(await bench.operator.snapshot())

    service = Service()
    async with opened(service, mode=mode, capacity=6, restore=snapshot.restore(0)) as bench:
        assert service.called == [1, 2, 3, 4]
        async with bench.feeding(5, 6, 7, 8) as feeding:
            assert service.called == [1, 2, 3, 4, 5, 6]
            assert await bench.queue() == [1, 2, 3, 4, 5, 6]
            await service.answer(1, 2, 3, 4)
            await feeding
            await service.answer(5, 6, 7, 8)

        assert bench.shown == list(range(1, 9))


@BOTH
async def test_timestamps_and_watermarks_come_back_in_their_places(mode: str) -> None:
    elements = [Record("a", 1), Watermark(2), Record("b", 3), Watermark(4), Watermark(5), Record("c", 6)]
    async with opened(Service(), mode=mode) as bench:
        await bench.feed(*elements)
        snapshot = await commit(await bench.operator.snapshot())

    service = Service()
    async with opened(service, mode=mode, restore=snapshot.restore(0)) as bench:
        await service.answer("c", "b", "a")

        assert bench.outputs == elements


@BOTH
async def test_a_full_queue_is_restored_whole(mode: str) -> None:
    async with opened(Service(), mode=mode, capacity=10) as bench:
        await bench.feed(*range(10))
        snapshot = await commit(await bench.operator.snapshot())

    async with opened(Instant(), mode=mode, capacity=10, restore=snapshot.restore(0)) as bench:
        await bench.operator.finish()

        assert sorted(bench.shown) == list(range(10))


@BOTH
async def test_more_elements_than_fit_are_restored_and_new_ones_wait_for_a_place(mode: str) -> None:
    async with opened(Service(), mode=mode, capacity=10) as bench:
        await bench.feed(*range(10))
        snapshot = await commit(await bench.operator.snapshot())

    service = Service()
    async with opened(service, mode=mode, capacity=3, restore=snapshot.restore(0)) as bench:
        assert bench.in_flight == 10
        assert service.running == [0, 1, 2]

        async with bench.feeding("new") as feeding:
            await service.answer(*range(7))
            assert not feeding.done()
            await service.answer(7)
            await feeding
            assert service.running == [8, 9, "new"]


async def test_a_finished_call_is_not_made_again() -> None:
    service = Service()
    async with opened(service, mode="ordered") as bench:
        await bench.feed(Record(1, 10), Record(2, 20), Record(3, 30))
        await service.answer(2, outputs=["two", "zwei"])
        await service.answer(3, outputs=[])
        snapshot = await commit(await bench.operator.snapshot())

    service = Service()
    async with opened(service, mode="ordered", restore=snapshot.restore(0)) as bench:
        assert service.called == [1]
        await service.answer(1)

        assert bench.outputs == [Record(1, 10), Record("two", 20), Record("zwei", 20)]
        assert service.called == [1]
        statistics = bench.operator.statistics()
        assert (statistics.reinvoked, statistics.reemitted, statistics.accepted) == (1, 2, 0)


async def test_results_that_wait_behind_a_watermark_are_kept_too() -> None:
    service = Service()
    async with opened(service, mode="unordered") as bench:
        await bench.feed("a", Watermark(1), "b", "c", Watermark(2), "d")
        await service.answer("d", "c")
        assert bench.shown == []
        snapshot = await commit(await bench.operator.snapshot())

    service = Service()
    async with opened(service, mode="unordered", restore=snapshot.restore(0)) as bench:
        assert (service.called, bench.shown) == (["a", "b"], [])
        await service.answer("a")
        assert bench.shown == ["a", Watermark(1), "c"]
        await service.answer("b")
        assert bench.shown == ["a", Watermark(1), "c", "b", Watermark(2), "d"]


async def test_completed_heads_leave_during_open() -> None:
    """So whoever takes the outputs must be ready before the operator is opened."""
    service = Service()
    async with opened(service, mode="ordered") as bench:
        await bench.feed("head", "done")
        await service.answer("done")
        cut = await bench.operator.snapshot()
    completed_only = [element for element in cut.in_flight if element.completed]
    snapshot = await commit(type(cut)(**{**fields(cut), "in_flight": tuple(completed_only)}))

    bench = Bench(Service(), mode="ordered")
    await bench.operator.open(snapshot.restore(0))
    assert bench.shown == ["done"]
    await bench.operator.close()


def fields(cut: Any) -> dict[str, Any]:
    return {name: getattr(cut, name) for name in cut.__dataclass_fields__}


async def test_elements_that_have_left_are_in_no_later_snapshot() -> None:
    store = new_store()
    service = Service()
    async with opened(service) as bench:
        await bench.feed(1, 2)
        first = await commit(await bench.operator.snapshot(), store=store)
        await service.answer(1)
        await bench.feed(3)
        second = await commit(await bench.operator.snapshot(), store=store)
        await service.answer(2, 3)
        third = await commit(await bench.operator.snapshot(), store=store)

    assert [snapshot.in_flight_count for snapshot in (first, second, third)] == [2, 2, 0]
    assert [element.value for element in second.restore(0).queue().elements] == [2, 3]
    assert [element.value for element in first.restore(0).queue().elements] == [1, 2]


async def test_a_snapshot_changes_nothing_in_the_operator_and_nothing_changes_the_snapshot() -> None:
    service = Service()
    async with opened(service) as bench:
        await bench.feed(1, 2)
        cut = await bench.operator.snapshot()
        await service.answer(1, 2)

        assert bench.shown == [1, 2]
        assert [(element.value, element.completed) for element in cut.in_flight] == [(1, False), (2, False)]


async def test_a_snapshot_counts_the_outputs_before_it() -> None:
    service = Service()
    async with opened(service) as bench:
        await bench.feed(1, Watermark(1), 2)
        await service.answer(1, outputs=["a", "b"])
        cut = await bench.operator.snapshot()
        await service.answer(2)

        assert cut.emitted == 3
        assert bench.shown[: cut.emitted] == ["a", "b", Watermark(1)]
        assert cut.watermark == 1


async def test_the_count_of_outputs_starts_anew_with_each_operator() -> None:
    service = Service()
    async with opened(service) as bench:
        await bench.feed(1, 2)
        await service.answer(1)
        snapshot = await commit(await bench.operator.snapshot())

    service = Service()
    async with opened(service, restore=snapshot.restore(0)) as bench:
        assert (await bench.operator.snapshot()).emitted == 0
        await service.answer(2)
        assert (await bench.operator.snapshot()).emitted == 1


@BOTH
async def test_elements_tried_before_and_never_tried_are_restored_side_by_side(mode: str) -> None:
    async with opened(Service(), mode=mode, capacity=2) as bench:
        await bench.feed("first", "second")
        snapshot = await commit(await bench.operator.snapshot())

    middle = Service()
    async with opened(middle, mode=mode, capacity=1, restore=snapshot.restore(0)) as bench:
        assert middle.called == ["first"]
        snapshot = await commit(await bench.operator.snapshot())

    last = Service()
    async with opened(last, mode=mode, restore=snapshot.restore(0)) as bench:
        await last.answer("first", "second")
        assert (bench.shown, last.called) == (["first", "second"], ["first", "second"])


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


async def test_elements_without_a_key_are_dealt_in_runs_of_equal_length() -> None:
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


async def test_a_snapshot_of_a_restored_operator_can_be_restored_before_anything_has_moved() -> None:
    service = Service()
    async with opened(service, mode="ordered") as bench:
        await bench.feed("a", Watermark(1), "b", "c")
        await service.answer("b")
        cut = await bench.operator.snapshot()
    expected = [(shown_element(element), element.completed, element.element_id) for element in cut.in_flight]

    for _ in range(3):
        snapshot = await commit(cut)
        async with opened(Service(), mode="ordered", restore=snapshot.restore(0)) as bench:
            cut = await bench.operator.snapshot()
        assert [(shown_element(e), e.completed, e.element_id) for e in cut.in_flight] == expected


async def test_an_empty_snapshot_restores_an_empty_operator() -> None:
    async with opened(Service()) as bench:
        snapshot = await commit(await bench.operator.snapshot())

    async with opened(Instant(), restore=snapshot.restore(0)) as bench:
        await bench.feed(1)

        assert bench.shown == [1]


async def test_the_mode_and_the_capacity_may_change_at_a_restore() -> None:
    service = Service()
    async with opened(service, mode="ordered", capacity=5) as bench:
        await bench.feed("a", "b", Watermark(1), "c")
        snapshot = await commit(await bench.operator.snapshot())

    service = Service()
    async with opened(service, mode="unordered", capacity=2, restore=snapshot.restore(0)) as bench:
        await service.answer("b", "a", "c")

        assert bench.shown == ["b", "a", Watermark(1), "c"]


async def test_snapshots_on_disk_are_read_without_blocking_the_loop(tmp_path: Any) -> None:
    """As on any filesystem where reading takes time; the in-flight elements are read before `open` returns."""
    from snapshots import SnapshotStore

    store = SnapshotStore(tmp_path, "operator")
    async with opened(Service()) as bench:
        await bench.feed(1, 2)
        snapshot = await commit(await bench.operator.snapshot(), store=store)

    service = Service()
    async with opened(service, restore=snapshot.restore(0)):
        assert service.called == [1, 2]
