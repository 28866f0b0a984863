"""Restored state comes into memory beside the event loop: what elements wait for first, then the rest."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from async_op import AsyncFunction, AsyncWaitOperator, InvocationContext
from keygroups import ValueState, key_group_of
from keygroups.state import LazyGroup
from snapshots import SnapshotCorrupted, SubtaskRestore
from tests.async_op.kit import commit, eventually, opened
from tests.backends import UnreadGroup

GROUPS = 8
COUNT = ValueState("count", default=0)
KEYS = [f"key {number}" for number in range(40)]


class Counting(AsyncFunction):
    """Counts the elements of each key."""

    states = (COUNT,)

    async def async_invoke(self, value: Any, ctx: InvocationContext) -> Any:
        count = ctx.state(COUNT).value() + 1
        ctx.state(COUNT).update(count)
        return [(value, count)]


class HeldGroup(UnreadGroup):
    """A key group that is loaded when the test lets it."""

    def __init__(self, group: LazyGroup, loading: Callable[[], None]) -> None:
        self._group = group
        self._loading = loading
        self.may_load = threading.Event()

    def load(self) -> Any:
        self._loading()
        assert self.may_load.wait(30), "nobody lets it load"
        return self._group.load()


class HeldRestore:
    """One subtask's share of a snapshot whose key groups are loaded one by one, as the test says."""

    def __init__(self, restore: SubtaskRestore) -> None:
        self._restore = restore
        self.order: list[int] = []
        self.threads: set[threading.Thread] = set()
        self.groups: dict[int, HeldGroup] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._restore, name)

    def states(self, descriptors: Any, now: int | None = None) -> Any:
        found = self._restore.states(descriptors, now)
        for state, groups in found.items():
            found[state] = {key_group: self._held(key_group, group) for key_group, group in groups.items()}
        return found

    def let_all(self) -> None:
        for group in self.groups.values():
            group.may_load.set()

    def _held(self, key_group: int, group: LazyGroup) -> HeldGroup:
        def loading() -> None:
            self.order.append(key_group)
            self.threads.add(threading.current_thread())

        held = self.groups[key_group] = HeldGroup(group, loading)
        return held


async def counted_once() -> HeldRestore:
    """Return what an operator leaves that has counted each key once."""
    async with opened(Counting(), key_by=lambda key: key, max_parallelism=GROUPS) as bench:
        await bench.feed(*KEYS)
        snapshot = await commit(await bench.operator.snapshot())
    return HeldRestore(snapshot.restore(0))


def opened_with(restore: Any, outputs: list[Any], **options: Any) -> AsyncWaitOperator:
    return AsyncWaitOperator(Counting(), outputs.append, key_by=lambda key: key, max_parallelism=GROUPS, **options)


async def test_an_element_waits_for_its_key_group_only() -> None:
    restore, outputs = await counted_once(), []
    operator = opened_with(restore, outputs)
    await operator.open(restore=restore)
    by_group = {key_group_of(key, GROUPS): key for key in KEYS}
    lowest, quick, slow = (by_group[key_group] for key_group in sorted(by_group)[:3])
    await eventually(lambda: restore.order)
    await operator.process(slow)
    await operator.process(quick)
    await operator.process(slow)
    for key in (lowest, slow):
        restore.groups[key_group_of(key, GROUPS)].may_load.set()
    await eventually(lambda: len(outputs) == 2)
    assert [record.value for record in outputs] == [(slow, 2), (slow, 3)]
    await eventually(lambda: len(restore.order) == 3)
    # The first group was under way; then come those that somebody waits for, in the order in which they were asked for.
    assert restore.order == [key_group_of(key, GROUPS) for key in (lowest, slow, quick)]
    restore.let_all()
    await operator.finish()
    await operator.close()
    assert [record.value for record in outputs[2:]] == [(quick, 2)]


async def test_a_function_is_asked_what_it_knows_once_the_key_group_is_in_memory() -> None:
    class Knows(Counting):
        def known_outputs(self, value: Any, ctx: InvocationContext) -> Any:
            assert restore.groups[key_group_of(value, GROUPS)].may_load.is_set(), "a file would be read on the loop"
            return [ctx.state(COUNT).value()]

    restore = await counted_once()
    outputs: list[Any] = []
    operator = AsyncWaitOperator(Knows(), outputs.append, key_by=lambda key: key, max_parallelism=GROUPS)
    await operator.open(restore=restore)
    await operator.process(KEYS[0])
    await eventually(lambda: restore.order)
    restore.let_all()
    await operator.finish()
    await operator.close()
    assert [record.value for record in outputs] == [1]


async def test_the_rest_comes_into_memory_without_being_asked_for() -> None:
    restore = await counted_once()
    restore.let_all()
    operator = opened_with(restore, [])
    await operator.open(restore=restore)
    restore.let_all()
    await eventually(lambda: len(restore.order) == len(restore.groups))
    assert len(restore.threads) == 1, "to start a thread takes longer than to load a small key group"
    await operator.close()


async def test_without_preload_only_what_elements_ask_for_is_loaded() -> None:
    restore, outputs = await counted_once(), []
    operator = opened_with(restore, outputs)
    await operator.open(restore=restore, preload=False)
    restore.let_all()
    for key in KEYS[:2]:
        await operator.process(key)
        await eventually(lambda key=key: [record.value for record in outputs][-1:] == [(key, 2)])
    assert restore.order == list(dict.fromkeys(key_group_of(key, GROUPS) for key in KEYS[:2]))
    await operator.close()


async def test_restored_elements_are_called_in_their_stored_order_before_the_rest_is_loaded() -> None:
    class Listed(Counting):
        """Calls that never return, in their order."""

        def __init__(self) -> None:
            self.called: list[str] = []

        async def async_invoke(self, value: Any, ctx: InvocationContext) -> Any:
            if ctx.state(COUNT).value():
                self.called.append(value)
                await asyncio.Event().wait()
            return await super().async_invoke(value, ctx)

        async def open(self, runtime: Any) -> None:
            for held in (restore.groups if restore else {}).values():
                held.may_load.set()

    restore: HeldRestore | None = None
    by_group = {key_group_of(key, GROUPS): key for key in KEYS}
    pending = [by_group[key_group] for key_group in sorted(by_group, reverse=True)]
    async with opened(Listed(), key_by=lambda key: key, max_parallelism=GROUPS) as bench:
        await bench.feed(*KEYS)
        await bench.feed(*pending)
        snapshot = await commit(await bench.operator.snapshot())

    restore, second = HeldRestore(snapshot.restore(0)), Listed()
    async with opened(second, key_by=lambda key: key, max_parallelism=GROUPS, restore=restore):
        await eventually(lambda: len(second.called) == len(pending))
    assert second.called == pending
    assert restore.order == [key_group_of(key, GROUPS) for key in pending]


async def test_elements_of_a_key_keep_their_order_while_its_key_group_is_loaded() -> None:
    restore, outputs = await counted_once(), []
    operator = opened_with(restore, outputs, mode="key_ordered")
    await operator.open(restore=restore)
    for _ in range(3):
        await operator.process(KEYS[0])
    restore.let_all()
    await operator.finish()
    await operator.close()
    assert [record.value for record in outputs] == [(KEYS[0], 2), (KEYS[0], 3), (KEYS[0], 4)]


async def test_a_snapshot_does_not_wait_for_what_is_being_loaded() -> None:
    restore = await counted_once()
    operator = opened_with(restore, [])
    await operator.open(restore=restore)
    await operator.process(KEYS[0])
    captured = await operator.snapshot()
    assert [element.value for element in captured.in_flight] == [KEYS[0]]
    restore.let_all()
    await operator.close()
    snapshot = await commit(captured)
    assert snapshot.to_arrow("count").num_rows == len(KEYS)


async def test_a_key_group_that_cannot_be_read_fails_the_operator_by_name() -> None:
    restore = await counted_once()
    operator = opened_with(restore, [])

    def fail() -> None:
        raise SnapshotCorrupted("the file", "broken")

    await operator.open(restore=restore)
    for group in restore.groups.values():
        group._loading = fail
    restore.let_all()
    with pytest.raises(SnapshotCorrupted, match="the file"):
        for _ in range(1000):
            await operator.process(KEYS[0])
            await asyncio.sleep(0.001)
    await operator.close()


async def test_close_does_not_wait_for_the_rest() -> None:
    restore = await counted_once()
    operator = opened_with(restore, [])
    await operator.open(restore=restore)
    await operator.process(KEYS[0])
    await eventually(lambda: restore.order)
    await operator.close()
    restore.let_all()
    assert len(restore.order) == 1
