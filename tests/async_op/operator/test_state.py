"""Keyed state that a function may use while many calls are in flight."""

from __future__ import annotations

import asyncio
from typing import Any

import pyarrow as pa
import pytest

from async_op import AsyncFunction, InvocationContext
from keygroups import ValueState, key_group_of, range_of
from snapshots import Snapshot, SnapshotStore
from tests.async_op.kit import BOTH, Service, commit, new_store, opened, settle

SUM = ValueState("sum", pa.int64(), default=0)
NOTES = ValueState("notes")
GROUPS = 16


class Adding(Service):
    """Adds a value (a key and a number) to its key's sum: read before the call, written after it."""

    states = (SUM, NOTES)

    async def async_invoke(self, value: Any, ctx: InvocationContext) -> Any:
        before = ctx.state(SUM).value()
        outputs = await super().async_invoke(value, ctx)
        ctx.state(SUM).update(before + value[1])
        ctx.state(NOTES).update({"last": value[1]})
        return [before + value[1]] if outputs == [value] else outputs


def by_key(value: Any) -> Any:
    return value[0]


@BOTH
async def test_one_call_runs_per_key_and_the_next_sees_what_it_wrote(mode: str) -> None:
    service = Adding()
    async with opened(service, mode=mode, key_by=by_key) as bench:
        await bench.feed(("a", 1), ("a", 2), ("b", 10), ("a", 3))
        assert service.running == [("a", 1), ("b", 10)]

        await service.answer(("a", 1))
        assert service.running == [("b", 10), ("a", 2)]

        await service.answer(("b", 10), ("a", 2), ("a", 3))
        assert sorted(bench.shown) == [1, 3, 6, 10]
        await bench.feed(("a", 4))
        await service.answer(("a", 4))
        assert bench.shown[-1] == 10


@BOTH
async def test_the_outputs_of_one_key_keep_its_order(mode: str) -> None:
    service = Adding()
    async with opened(service, mode=mode, key_by=by_key) as bench:
        await bench.feed(*[("a", number) for number in range(1, 6)])
        for number in range(1, 6):
            await service.answer(("a", number))

        assert bench.shown == [1, 3, 6, 10, 15]


async def test_a_function_without_state_has_any_number_of_calls_per_key() -> None:
    service = Service()
    async with opened(service, key_by=by_key) as bench:
        await bench.feed(("a", 1), ("a", 2))

        assert service.running == [("a", 1), ("a", 2)]


async def test_a_call_reads_its_own_writes_and_nobody_elses_until_they_return() -> None:
    seen: dict[str, Any] = {}

    class Looking(Service):
        states = (SUM,)

        async def async_invoke(self, value: Any, ctx: InvocationContext) -> Any:
            state = ctx.state(SUM)
            seen[f"{value} before"] = state.value()
            state.update(7)
            seen[f"{value} after"] = ctx.state(SUM).value()
            state.clear()
            seen[f"{value} cleared"] = state.value()
            state.update(8)
            return await super().async_invoke(value, ctx)

    service = Looking()
    async with opened(service, key_by=lambda value: value[:1]) as bench:
        await bench.feed("a1", "a2")
        cut = await bench.operator.snapshot()
        assert stored(cut, "sum") == {}

        await service.answer("a1")
        assert stored(await bench.operator.snapshot(), "sum") == {"a": 8}
        assert seen == {
            "a1 before": 0,
            "a1 after": 7,
            "a1 cleared": 0,
            "a2 before": 8,
            "a2 after": 7,
            "a2 cleared": 0,
        }


def stored(cut: Any, state: str) -> dict[Any, Any]:
    """Return the content of a state in a subtask's snapshot."""
    [states] = [states for states in cut.states if states.descriptor.name == state]
    groups = [group.load() for group in states.groups.values()]
    return {key: value for group in groups for key, value in group.items()}


async def test_a_snapshot_has_all_writes_of_a_completed_element_and_none_of_a_pending_one() -> None:
    service = Adding()
    async with opened(service, mode="ordered", key_by=by_key) as bench:
        await bench.feed(("slow", 1), ("done", 2), ("done", 3))
        await service.answer(("done", 2))
        cut = await bench.operator.snapshot()

    assert bench.shown == []
    assert [element.completed for element in cut.in_flight] == [False, True, False]
    assert stored(cut, "sum") == {"done": 2}
    assert stored(cut, "notes") == {"done": {"last": 2}}


@pytest.mark.behaviour("results that have not left are stored and emitted: no finished call is made again")
async def test_a_restored_element_applies_its_writes_once() -> None:
    first = Adding()
    async with opened(first, mode="ordered", key_by=by_key) as bench:
        await bench.feed(("slow", 1), ("done", 2), ("done", 3))
        await first.answer(("done", 2))
        snapshot = await commit(await bench.operator.snapshot())
        await first.answer(("slow", 1), ("done", 3))

    second = Adding()
    async with opened(second, mode="ordered", key_by=by_key, restore=snapshot.restore(0)) as bench:
        assert second.called == [("slow", 1), ("done", 3)]
        await second.answer(("done", 3), ("slow", 1))

        assert bench.shown == [1, 2, 5]
        assert stored(await bench.operator.snapshot(), "sum") == {"slow": 1, "done": 5}


async def test_a_snapshot_is_not_touched_by_what_is_written_after_it() -> None:
    service = Adding()
    async with opened(service, key_by=by_key) as bench:
        await bench.feed(("a", 1), ("b", 1))
        await service.answer(("a", 1), ("b", 1))
        first = await bench.operator.snapshot()
        await bench.feed(("a", 5))
        await service.answer(("a", 5))
        second = await bench.operator.snapshot()

    assert stored(first, "sum") == {"a": 1, "b": 1}
    assert stored(second, "sum") == {"a": 6, "b": 1}


async def test_a_cleared_state_is_gone_from_the_next_snapshot_and_reads_as_the_default() -> None:
    class Clearing(AsyncFunction):
        states = (SUM,)

        async def async_invoke(self, value: Any, ctx: InvocationContext) -> Any:
            state = ctx.state(SUM)
            before = state.value()
            if value == "clear":
                state.clear()
            else:
                state.update(5)
            return [before]

    async with opened(Clearing(), key_by=lambda _: "key") as bench:
        await bench.feed("set", "clear", "look")

        assert bench.shown == [0, 5, 0]
        await bench.feed("clear")
        assert stored(await bench.operator.snapshot(), "sum") == {}


@pytest.mark.parametrize("parallelism", [1, 2, 3, 16])
async def test_state_follows_its_key_to_any_parallelism(parallelism: int) -> None:
    keys = [f"k{number}" for number in range(40)]
    snapshot = await written_by(2, keys)

    sums: dict[str, int] = {}
    for index in range(parallelism):
        owned = range_of(index, parallelism, GROUPS)
        mine = [key for key in keys if key_group_of(key, GROUPS) in owned]
        service = Adding()
        options = {"parallelism": parallelism, "subtask_index": index, "max_parallelism": GROUPS}
        async with opened(
            service, mode="ordered", key_by=by_key, restore=snapshot.restore(index, parallelism), **options
        ) as bench:
            await bench.feed(*[(key, 100) for key in mine])
            await service.answer(*[(key, 100) for key in mine])
            sums |= dict(zip(mine, bench.shown, strict=True))
            assert stored(await bench.operator.snapshot(), "sum") == {key: sums[key] for key in mine}

    assert sums == {key: 100 + number for number, key in enumerate(keys)}


async def written_by(parallelism: int, keys: list[str], store: SnapshotStore | None = None) -> Snapshot:
    """Return a snapshot in which the sum of the n-th key is n."""
    cuts = []
    for index in range(parallelism):
        owned = range_of(index, parallelism, GROUPS)
        service = Adding()
        options = {"parallelism": parallelism, "subtask_index": index, "max_parallelism": GROUPS}
        async with opened(service, key_by=by_key, **options) as bench:
            mine = [(key, n) for n, key in enumerate(keys) if key_group_of(key, GROUPS) in owned]
            await bench.feed(*mine)
            await service.answer(*mine)
            cuts.append(await bench.operator.snapshot())
    return await commit(*cuts, store=store)


async def test_what_no_call_has_touched_since_a_restore_is_in_the_next_snapshot() -> None:
    keys = [f"k{number}" for number in range(20)]
    snapshot = await written_by(1, keys)
    service = Adding()
    async with opened(service, key_by=by_key, max_parallelism=GROUPS, restore=snapshot.restore(0)) as bench:
        await bench.feed(("k3", 1000))
        await service.answer(("k3", 1000))
        cut = await bench.operator.snapshot()

    assert stored(cut, "sum") == {key: number for number, key in enumerate(keys)} | {"k3": 1003}


async def test_state_is_shared_by_no_two_operators_of_one_function() -> None:
    service = Adding()
    async with opened(service, key_by=by_key) as one, opened(service, key_by=by_key) as other:
        await one.feed(("a", 1))
        await service.answer(("a", 1))
        await other.feed(("a", 2))
        await service.answer(("a", 2))

        assert (one.shown, other.shown) == ([1], [2])


@pytest.mark.parametrize("key", [0, -1, 2**40, "text", b"bytes", 2.5, True, ("a", 1), ""])
async def test_keys_of_every_kind_find_their_state_again(key: Any) -> None:
    first = Adding()
    async with opened(first, key_by=by_key) as bench:
        await bench.feed((key, 1))
        await first.answer((key, 1))
        snapshot = await commit(await bench.operator.snapshot())

    second = Adding()
    async with opened(second, key_by=by_key, restore=snapshot.restore(0)) as bench:
        await bench.feed((key, 2))
        await second.answer((key, 2))

        assert bench.shown == [3]


async def test_a_task_that_a_call_has_started_may_use_the_state_until_the_call_returns() -> None:
    class Helped(AsyncFunction):
        states = (SUM,)

        async def async_invoke(self, value: Any, ctx: InvocationContext) -> Any:
            async def help_out() -> None:
                await asyncio.sleep(0)
                ctx.state(SUM).update(ctx.state(SUM).value() + 1)

            await asyncio.gather(help_out())
            return [ctx.state(SUM).value()]

    async with opened(Helped(), key_by=lambda _: "key") as bench:
        await bench.feed(1, 2, 3)
        await settle()

        assert bench.shown == [1, 2, 3]


async def test_a_hot_key_does_not_hold_the_others_up() -> None:
    service = Adding()
    async with opened(service, key_by=by_key, capacity=100) as bench:
        await bench.feed(*[("hot", number) for number in range(1, 50)], ("cold", 1))

        assert service.running == [("hot", 1), ("cold", 1)]


async def test_state_on_disk_is_there_after_a_restore(tmp_path: Any) -> None:
    store = SnapshotStore(tmp_path, "operator")
    snapshot = await written_by(1, ["a", "b", "c"], store)
    service = Adding()
    async with opened(service, key_by=by_key, max_parallelism=GROUPS, restore=snapshot.restore(0)) as bench:
        await bench.feed(("c", 5))
        await service.answer(("c", 5))

        assert bench.shown == [7]


async def test_the_newest_snapshot_of_a_store_is_what_an_operator_continues_from() -> None:
    store = new_store()
    for expected in (1, 2, 3):
        latest = store.latest()
        service = Adding()
        async with opened(service, key_by=by_key, restore=latest and latest.restore(0)) as bench:
            await bench.feed(("a", 1))
            await service.answer(("a", 1))
            assert bench.shown == [expected]
            await commit(await bench.operator.snapshot(), store=store)
