"""State without a key: functions declare it, snapshots hold it, and a rescale redistributes it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from async_op import (
    AsyncFunction,
    BlockingFunction,
    CallbackFunction,
    ElementFailed,
    InvocationContext,
    ItemsNotGiven,
    function,
)
from async_op.functions.base import ResultFuture
from async_op.functions.runtime import Runtime
from keygroups import ConfigError, OperatorListState, OperatorMapState, ValueState
from keygroups.state import OperatorMapIsFinal, OperatorStateOfAnotherThread
from snapshots import IncompatibleSnapshot, Snapshot, SubtaskSnapshot, UnequalCopies
from tests.async_op.kit import Bench, Instant, Service, commit, opened, settle

GROUPS = 16
SEEN = OperatorListState("seen")
KNOWN = OperatorListState("known", mode="union")
RULES = OperatorMapState("rules")


class Reader(Service):
    """Notes what it is called for before the call, and what `open` found."""

    operator_states = (SEEN, KNOWN, RULES)

    def __init__(self, **rules: Any) -> None:
        super().__init__()
        self.rules = rules
        self.completed: list[int] = []

    async def open(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.seen, self.known = runtime.operator_state(SEEN), runtime.operator_state(KNOWN)
        self.found = self.seen.get(), self.known.get(), dict(runtime.operator_state(RULES))
        runtime.operator_state(RULES).update(self.rules)
        if not runtime.restored:
            self.known.add(f"subtask {runtime.subtask_index}")

    async def async_invoke(self, value: Any, ctx: InvocationContext) -> Iterable[Any]:
        self.seen.add(value)
        return await super().async_invoke(value, ctx)

    async def snapshot_complete(self, version: int) -> None:
        self.completed.append(version)


def place(subtask_index: int, parallelism: int) -> dict[str, int]:
    return {"parallelism": parallelism, "subtask_index": subtask_index, "max_parallelism": GROUPS}


async def cut_of(subtask_index: int, parallelism: int, *values: Any, rules: Any = None) -> SubtaskSnapshot:
    reader = Reader(**(rules or {"a": 1}))
    async with opened(reader, **place(subtask_index, parallelism)) as bench:
        await bench.feed(*values)
        return await bench.operator.snapshot()


async def found_by(snapshot: Snapshot, parallelism: int) -> list[tuple[Any, Any, Any]]:
    """Return what `open` finds in each subtask."""
    found = []
    for index in range(parallelism):
        reader = Reader()
        async with opened(reader, restore=snapshot.restore(index, parallelism), **place(index, parallelism)):
            assert reader.runtime.restored
            found.append(reader.found)
    return found


@pytest.mark.parametrize("parallelism", [1, 2, 3])
async def test_a_restore_distributes_it_at_any_parallelism(parallelism: int) -> None:
    snapshot = await commit(await cut_of(0, 2, "a", "b", "c"), await cut_of(1, 2, "d"))
    found = await found_by(snapshot, parallelism)

    assert [item for seen, _, _ in found for item in seen] == ["a", "b", "c", "d"]
    assert [known for _, known, _ in found] == [["subtask 0", "subtask 1"]] * parallelism
    assert [rules for _, _, rules in found] == [{"a": 1}] * parallelism
    if parallelism != 2:
        assert max(len(seen) for seen, _, _ in found) - min(len(seen) for seen, _, _ in found) <= 1


@pytest.mark.parametrize("steps", [(2, 2, 2), (1, 3, 2, 5)])
async def test_no_restore_multiplies_it(steps: tuple[int, ...]) -> None:
    cuts = []
    for index in range(3):
        reader = Reader(a=1)
        async with opened(reader, **place(index, 3)) as bench:
            reader.seen.add(f"value {index}")
            cuts.append(await bench.operator.snapshot())
    snapshot = await commit(*cuts)
    for parallelism in steps:
        cuts = []
        for index in range(parallelism):
            reader, share = Reader(), snapshot.restore(index, parallelism)
            async with opened(reader, restore=share, **place(index, parallelism)) as bench:
                cuts.append(await bench.operator.snapshot())
        snapshot = await commit(*cuts)
    for seen, known, rules in await found_by(snapshot, 1):
        assert (seen, known) == ([f"value {n}" for n in range(3)], [f"subtask {n}" for n in range(3)])
        assert rules == {"a": 1}


async def test_without_a_snapshot_it_is_empty() -> None:
    reader = Reader()
    async with opened(reader):
        assert reader.found == ([], [], {})
        assert not reader.runtime.restored


async def test_a_write_counts_at_once_even_that_of_a_call_that_never_returns() -> None:
    reader = Reader()
    async with opened(reader) as bench:
        await bench.feed("pending")
        cut = await bench.operator.snapshot()
        await reader.answer("pending")
        reader.seen.update([])
        assert [element.completed for element in cut.in_flight] == [False]
        assert {state.name: state.items for state in cut.operator_states} == {
            "seen": ("pending",),
            "known": ("subtask 0",),
            "rules": (),
        }
        assert (await bench.operator.snapshot()).operator_states[0].items == ()


async def test_copies_of_a_map_that_differ_refuse_the_commit() -> None:
    parts = [await cut_of(index, 2, rules={"a": index}) for index in range(2)]
    with pytest.raises(UnequalCopies, match="subtasks 0 and 1 hold different copies of operator state 'rules'"):
        await commit(*parts)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        ({"a": {"x": 1, "y": 2}}, {"a": {"y": 2, "x": 1}}),
        ({"a": {8, 16, 0}}, {"a": {0, 16, 8}}),  # small sets list these in the order of insertion
    ],
)
async def test_the_order_of_entries_makes_no_difference(one: Any, other: Any) -> None:
    snapshot = await commit(await cut_of(0, 2, rules=one), await cut_of(1, 2, rules=other))
    assert [rules for _, _, rules in await found_by(snapshot, 2)] == [one, other]


async def test_a_map_is_written_in_open_only() -> None:
    class Late(Instant):
        operator_states = (RULES,)

        async def async_invoke(self, value: Any, ctx: InvocationContext) -> Iterable[Any]:
            ctx.operator_state(RULES)["late"] = value
            return []

    async with opened(Late()) as bench:
        with pytest.raises(ElementFailed) as failed:
            await bench.feed("x")
            await bench.operator.finish()
        assert isinstance(failed.value.__cause__, OperatorMapIsFinal)


async def test_a_plain_function_gets_it_through_the_context() -> None:
    @function(operator_states=(SEEN,))
    async def note(value: str, ctx: InvocationContext) -> int:
        ctx.operator_state(SEEN).add(value)
        return len(ctx.operator_state(SEEN).get())

    assert note.operator_states == (SEEN,)
    async with opened(note) as bench:
        await bench.feed("x", "y")
        assert bench.shown == [1, 2]
        assert (await bench.operator.snapshot()).operator_states[0].items == ("x", "y")


class Blocking(BlockingFunction):
    operator_states = (SEEN, RULES)

    async def open(self, runtime: Runtime) -> None:
        self.seen, self.rules = runtime.operator_state(SEEN), runtime.operator_state(RULES)
        self.rules["factor"] = 3

    def invoke(self, value: int, ctx: InvocationContext) -> list[Any]:
        try:
            self.seen.add(value)
        except OperatorStateOfAnotherThread as error:
            ctx.operator_state(SEEN).add(value)
            ctx.operator_state(SEEN).update([*ctx.operator_state(SEEN).get(), -value])
            return [type(error).__name__, self.rules["factor"] * ctx.operator_state(RULES)["factor"] * value]
        raise AssertionError("the state belongs to the loop's thread")


async def test_a_call_on_a_thread_gets_lists_through_the_context_and_reads_maps_anywhere() -> None:
    async with opened(Blocking(), mode="ordered") as bench:
        await bench.feed(5)
        await bench.operator.finish()
        assert bench.shown == ["OperatorStateOfAnotherThread", 45]
        assert (await bench.operator.snapshot()).operator_states[0].items == (5, -5)


async def test_a_callback_gets_it_through_the_context() -> None:
    class Calling(CallbackFunction):
        operator_states = (SEEN,)

        def async_invoke(self, value: Any, result_future: ResultFuture) -> None:
            result_future.ctx.operator_state(SEEN).add(value)
            result_future.complete(result_future.ctx.operator_state(SEEN).get())

    async with opened(Calling()) as bench:
        await bench.feed("x")
        assert bench.shown == ["x"]


class TestWhatASnapshotHas:
    async def refused(self, snapshot: Snapshot, *declared: Any) -> str:
        class Other(Service):
            operator_states = declared

        bench = Bench(Other(), max_parallelism=GROUPS)
        with pytest.raises(IncompatibleSnapshot) as error:
            await bench.operator.open(snapshot.restore(0))
        await bench.operator.close()
        return str(error.value)

    async def test_must_be_declared(self) -> None:
        snapshot = await commit(await cut_of(0, 1, "x"))
        message = await self.refused(snapshot, SEEN, RULES)
        assert "'known'" in message
        assert "declare it in the function's operator_states" in message
        assert "--drop known`" in message

    async def test_must_be_declared_with_its_mode(self) -> None:
        snapshot = await commit(await cut_of(0, 1, "x"))
        message = await self.refused(snapshot, SEEN, OperatorListState("known", mode="split"), RULES)
        assert "the mode of operator state 'known' of the snapshot is 'union', but 'split' is needed" in message

    async def test_must_be_entries_where_a_map_is_declared(self) -> None:
        cut = await cut_of(0, 1)
        states = [replace(one, items=("no pair",)) if one.name == "rules" else one for one in cut.operator_states]
        message = await self.refused(await commit(replace(cut, operator_states=tuple(states))), SEEN, KNOWN, RULES)
        assert "an item of operator state 'rules' of the snapshot is 'no pair'" in message

    async def test_may_be_less_than_is_declared(self) -> None:
        async with opened(Service(), max_parallelism=GROUPS) as bench:
            snapshot = await commit(await bench.operator.snapshot())
        assert await found_by(snapshot, 1) == [([], [], {})]


class TestSnapshotComplete:
    async def test_the_function_hears_of_a_commit_from_whoever_commits(self) -> None:
        reader = Reader()
        async with opened(reader) as bench:
            await bench.operator.snapshot_complete(7)
        assert reader.completed == [7]

    async def test_it_sees_what_the_snapshot_holds_and_not_what_came_after(self) -> None:
        class Acknowledging(Instant):
            operator_states = (SEEN,)

            async def open(self, runtime: Runtime) -> None:
                self.seen = runtime.operator_state(SEEN)
                self.acknowledged: list[Any] = []

            async def async_invoke(self, value: Any, ctx: InvocationContext) -> list[Any]:
                self.seen.add(value)
                return []

            async def snapshot_complete(self, version: int) -> None:
                done = self.seen.in_snapshot()
                self.acknowledged += done
                self.seen.update(self.seen.get()[len(done) :])

        acknowledging = Acknowledging()
        async with opened(acknowledging) as bench:
            await bench.feed("a", "b")
            first = await bench.operator.snapshot()
            await bench.feed("c")
            await bench.operator.snapshot()
            await bench.feed("d")
            await bench.operator.snapshot_complete(1, first.cut_id)
            assert acknowledging.acknowledged == ["a", "b"]
            last = await bench.operator.snapshot()
            assert last.operator_states[0].items == ("c", "d")
            await bench.operator.snapshot_complete(3)
            assert acknowledging.acknowledged == ["a", "b", "c", "d"]

    async def test_its_error_is_that_of_the_caller(self) -> None:
        class Failing(Instant):
            async def snapshot_complete(self, version: int) -> None:
                raise OSError("no acknowledgement")

        async with opened(Failing()) as bench:
            with pytest.raises(OSError, match="no acknowledgement"):
                await bench.operator.snapshot_complete(7)

    async def test_a_function_need_not_define_it(self) -> None:
        async with opened(Instant()) as bench:
            await bench.operator.snapshot_complete(7)
            await settle()


@pytest.mark.parametrize(
    ("declared", "named"),
    [
        (SEEN, "with a comma"),
        ("seen", "pass a tuple of descriptors"),
        ((ValueState("seen"),), "such as OperatorListState"),
        ((SEEN, OperatorMapState("seen")), "another state has this name"),
        ((OperatorListState("count"),), "another state has this name"),
    ],
)
def test_a_declaration_that_can_never_work_is_refused(declared: Any, named: str) -> None:
    class Odd(Instant):
        states = (ValueState("count"),)
        operator_states = declared

    with pytest.raises(ConfigError, match=named):
        Bench(Odd(), key_by=str)
    with pytest.raises(ConfigError, match=named):
        function(states=(ValueState("count"),), operator_states=declared)


def test_snapshot_complete_must_be_a_coroutine_function() -> None:
    class Odd(AsyncFunction):
        async def async_invoke(self, value: Any, ctx: InvocationContext) -> list[Any]:
            return []

        def snapshot_complete(self, version: int) -> None:  # type: ignore[override]
            pass

    with pytest.raises(ConfigError, match=r"Odd.snapshot_complete.*async def"):
        Bench(Odd())


class Giver(Service):
    """Keeps its items itself, and gives them when a snapshot is cut."""

    operator_states = (SEEN, KNOWN, RULES)

    def __init__(self, known: Any = None) -> None:
        super().__init__()
        self.known = known
        self.asked: list[str] = []

    async def open(self, runtime: Runtime) -> None:
        self.handle = runtime.operator_state(SEEN)
        self.seen = self.handle.get()
        self.found = runtime.operator_state(KNOWN).get()
        runtime.operator_state(KNOWN).add("written")

    async def async_invoke(self, value: Any, ctx: InvocationContext) -> Iterable[Any]:
        if value not in self.seen:  # a call in flight in the cut is made again
            self.seen.append(value)
        return await super().async_invoke(value, ctx)

    def snapshot_state(self, descriptor: OperatorListState) -> Any:
        self.asked.append(descriptor.name)
        return self.seen if descriptor == SEEN else self.known


async def test_a_function_gives_the_items_of_its_lists_at_the_cut() -> None:
    giver = Giver()
    async with opened(giver, **place(0, 1)) as bench:
        giver.handle.add("written through the handle")
        await bench.feed("a", "b")
        cut = await bench.operator.snapshot()
        giver.seen.append("after the cut")
    assert giver.asked == ["seen", "known"]
    items = {state.name: state.items for state in cut.operator_states}
    assert items == {"seen": ("a", "b"), "known": ("written",), "rules": ()}

    again = Giver(known=["its own"])
    snapshot = await commit(cut)
    async with opened(again, restore=snapshot.restore(0, 1), **place(0, 1)) as bench:
        assert (again.seen, again.found) == (["a", "b"], ["written"])
        await bench.operator.snapshot()
        await bench.operator.snapshot_complete(2)
        assert again.handle.in_snapshot() == ["a", "b"]
        (known,) = [one for one in (await bench.operator.snapshot()).operator_states if one.name == "known"]
        assert known.items == ("its own",)


class BlockingGiver(BlockingFunction):
    operator_states = (SEEN,)

    def invoke(self, value: Any, ctx: InvocationContext) -> list[Any]:
        return [value]

    def snapshot_state(self, descriptor: OperatorListState) -> list[Any]:
        return ["given"]


async def test_a_function_of_threads_gives_items_too() -> None:
    async with opened(BlockingGiver(), **place(0, 1)) as bench:
        (cut,) = (await bench.operator.snapshot()).operator_states
    assert cut.items == ("given",)


@pytest.mark.parametrize(
    ("known", "reason"),
    [
        ("text", "it returned a str"),
        ({"a": 1}, "it returned a dict"),
        ([object()], "holds a value of type object"),
        (ValueError("no connection"), "no connection"),
    ],
    ids=["text", "a dict", "unstorable", "failing"],
)
async def test_items_that_no_snapshot_can_hold_are_named_with_their_state(known: Any, reason: str) -> None:
    class Failing(Giver):
        def snapshot_state(self, descriptor: OperatorListState) -> Any:
            if descriptor == KNOWN and isinstance(known, Exception):
                raise known
            return super().snapshot_state(descriptor)

    failing = Failing(known)
    async with opened(failing, **place(0, 1)) as bench:
        with pytest.raises(ItemsNotGiven, match=f"operator state 'known': .*{reason}"):
            await bench.operator.snapshot()
        failing.known = known = []
        assert (await bench.operator.snapshot()).operator_states[1].items == ()


async def test_a_snapshot_state_that_cannot_be_called_is_refused() -> None:
    class Asynchronous(Giver):
        async def snapshot_state(self, descriptor: OperatorListState) -> Any:
            return []

    class Narrow(Giver):
        def snapshot_state(self) -> Any:  # type: ignore[override]
            return []

    for function_, says in ((Asynchronous(), "define it with `def`"), (Narrow(), r"define it with \(descriptor\)")):
        with pytest.raises(ConfigError, match=says):
            Bench(function_)
