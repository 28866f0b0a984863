"""How an operator goes on from a snapshot: what is called again, what leaves, and in which order."""

from __future__ import annotations

import asyncio
from operator import itemgetter
from typing import Any

import pytest

from async_op import ElementFailed, Record, Watermark
from keygroups import ConfigError
from snapshots import IncompatibleSnapshot
from tests.async_op.kit import BOTH, Bench, Instant, Service, commit, opened, shown_element


@pytest.mark.behaviour("elements are processed again during open, which may emit")
@pytest.mark.behaviour("a snapshot is restored into another capacity and followed by another one")
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


@pytest.mark.behaviour("a snapshot holds every element as it came in, in the order of the queue")
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


@pytest.mark.behaviour("a full queue is restored whole")
@BOTH
async def test_a_full_queue_is_restored_whole(mode: str) -> None:
    async with opened(Service(), mode=mode, capacity=10) as bench:
        await bench.feed(*range(10))
        snapshot = await commit(await bench.operator.snapshot())

    async with opened(Instant(), mode=mode, capacity=10, restore=snapshot.restore(0)) as bench:
        await bench.operator.finish()

        assert sorted(bench.shown) == list(range(10))


@pytest.mark.behaviour("more elements than fit can be restored")
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


async def test_a_whole_snapshot_is_refused_with_words_on_what_to_pass() -> None:
    async with opened(Service()) as bench:
        snapshot = await commit(await bench.operator.snapshot())

    operator: Any = Bench(Service(), parallelism=2, subtask_index=1).operator
    advice = r"restore=.*pass snapshot\.restore\(subtask_index, parallelism\), here snapshot\.restore\(1, 2\)"
    with pytest.raises(ConfigError, match=advice):
        await operator.open(snapshot)


@pytest.mark.behaviour("results that have not left are stored and emitted: no finished call is made again")
async def test_a_finished_call_is_not_repeated() -> None:
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


@pytest.mark.behaviour("results that have not left are stored and emitted: no finished call is made again")
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


@pytest.mark.behaviour("elements are processed again during open, which may emit")
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


@pytest.mark.behaviour("elements tried before and never tried are restored together")
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


@pytest.mark.behaviour("a snapshot is restored into another capacity and followed by another one")
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


@BOTH
async def test_who_waits_for_what_was_restored_waits_for_nothing_that_came_later(mode: str) -> None:
    async with opened(Service(), mode=mode) as bench:
        await bench.feed(1, Watermark(2), 3)
        snapshot = await commit(await bench.operator.snapshot())

    service = Service()
    async with opened(service, mode=mode, restore=snapshot.restore(0)) as bench:
        await bench.feed(4)
        waiting = asyncio.create_task(bench.operator.settle_restored())
        await service.answer(3)
        assert not waiting.done()
        await service.answer(1)
        assert await waiting

        assert service.running == [4]
        assert bench.shown == [1, Watermark(2), 3]


async def test_nothing_restored_is_nothing_to_wait_for() -> None:
    async with opened(Service()) as bench:
        await bench.feed(1)
        assert not await bench.operator.settle_restored()

        assert bench.in_flight == 1


async def test_who_waits_for_what_was_restored_learns_of_a_failure() -> None:
    async with opened(Service()) as bench:
        await bench.feed(1)
        snapshot = await commit(await bench.operator.snapshot())

    service = Service()
    async with opened(service, restore=snapshot.restore(0)) as bench:
        waiting = asyncio.create_task(bench.operator.settle_restored())
        await service.fail(1, ValueError("no"))
        with pytest.raises(ElementFailed):
            await waiting


def remainder(value: int) -> int:
    return value % 3


def no_key(value: int) -> int:
    raise KeyError(value)


@pytest.mark.parametrize("other", [str, lambda value: value % 2, no_key])
async def test_other_keys_than_those_in_flight_are_refused_before_any_call(other: Any) -> None:
    async with opened(Service(), key_by=remainder, capacity=4) as bench:
        await bench.feed(2, 3)
        snapshot = await commit(await bench.operator.snapshot())

    service = Service()
    with pytest.raises(IncompatibleSnapshot, match="the key of element .* in flight"):
        async with opened(service, key_by=other, restore=snapshot.restore(0)):
            pass
    assert service.called == []
    async with opened(service, key_by=remainder, restore=snapshot.restore(0)):
        assert service.called == [2, 3]


async def test_an_element_whose_value_could_not_be_stored_does_not_say_that_keys_have_changed() -> None:
    async with opened(Service(), key_by=itemgetter("key")) as bench:
        await bench.feed({"key": 1, "odd": object()})
        snapshot = await commit(await bench.operator.snapshot())

    async with opened(Service(), key_by=itemgetter("key"), on_error="skip", restore=snapshot.restore(0)) as bench:
        await bench.operator.finish()
        assert bench.operator.statistics().skipped == 1
