"""What is refused, with an error that says what to do instead."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pytest

from async_op import (
    AsyncBatchFunction,
    AsyncFunction,
    AsyncWaitOperator,
    BlockingFunction,
    CallbackFunction,
    ElementFailed,
    InvocationContext,
    ValueRefused,
)
from async_op.retry import RetryPolicy
from keygroups import ConfigError, KeyGroupOutOfRange, NullKey, UnsupportedKey, ValueState, key_group_of, subtask_of
from keygroups.state import StateAccessOutsideInvocation, StateNotDeclared
from snapshots import IncompatibleSnapshot, Snapshot
from tests.async_op.batches import Doubles
from tests.async_op.kit import Bench, Instant, Service, commit, opened

COUNT = ValueState("count", pa.int64(), default=0)


class Counting(AsyncFunction):
    """Counts the elements of each key."""

    def __init__(self, *states: ValueState) -> None:
        self.states = states or (COUNT,)

    async def async_invoke(self, value: Any, ctx: InvocationContext) -> list[Any]:
        count = ctx.state(self.states[0])
        count.update(count.value() + 1)
        return [count.value()]


@pytest.mark.behaviour("an argument that can never work is refused")
@pytest.mark.behaviour("a timeout of None means none; zero or less is refused")
@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("mode", "sorted"),
        ("capacity", 0),
        ("capacity", -1),
        ("timeout", 0),
        ("timeout", -1.0),
        ("parallelism", 0),
        ("parallelism", 129),
        ("subtask_index", -1),
        ("subtask_index", 1),
        ("max_parallelism", 0),
        ("max_parallelism", 32769),
        ("hash", "md5"),
    ],
)
def test_an_argument_that_can_never_work_is_refused_by_name(option: str, value: Any) -> None:
    options = {"max_parallelism": 128} | {option: value}

    with pytest.raises(ConfigError, match=f"^{option}={value!r}: "):
        AsyncWaitOperator(Service(), print, **options)


def test_keyed_state_without_keys_is_refused() -> None:
    with pytest.raises(ConfigError, match="Counting declares keyed state, so its elements need a key"):
        AsyncWaitOperator(Counting(), print)


async def test_a_null_key_is_refused_and_the_operator_continues() -> None:
    service = Service()
    async with opened(service, key_by=lambda value: value.get("user")) as bench:
        with pytest.raises(NullKey, match="fill it in"):
            await bench.operator.process({"user": None})
        await bench.feed({"user": 1})

        assert service.called == [{"user": 1}]
        assert bench.operator.statistics().accepted == 1


@pytest.mark.parametrize("function", [Service(), Counting()], ids=["stateless", "stateful"])
@pytest.mark.parametrize("key", [[1], {"a": 1}, {1}, object()])
async def test_a_key_without_a_stable_hash_is_refused(key: Any, function: AsyncFunction) -> None:
    async with opened(function, key_by=lambda value: key) as bench:
        with pytest.raises(UnsupportedKey, match=type(key).__name__):
            await bench.operator.process("x")

        assert bench.in_flight == 0
        await bench.operator.finish()


async def test_the_key_of_another_subtask_is_refused() -> None:
    owner = subtask_of(key_group_of("ada", 128), 4, 128)
    other = (owner + 1) % 4
    async with opened(Service(), key_by=str, parallelism=4, subtask_index=other, max_parallelism=128) as bench:
        with pytest.raises(KeyGroupOutOfRange, match="routed to the wrong subtask"):
            await bench.operator.process("ada")

        assert bench.in_flight == 0


async def test_an_error_of_key_by_is_the_callers() -> None:
    async with opened(Service(), key_by=lambda value: value["user"]) as bench:
        with pytest.raises(KeyError, match="user"):
            await bench.operator.process({})
        await bench.feed({"user": 1})

        assert bench.in_flight == 1


async def test_a_state_that_is_not_declared_is_refused() -> None:
    class Asking(Counting):
        async def async_invoke(self, value: Any, ctx: InvocationContext) -> list[Any]:
            ctx.state(ValueState("visits"))
            return []

    async with opened(Asking(), key_by=str) as bench:
        await bench.feed("x")

        with pytest.raises(Exception, match=r"'visits' is not declared \(declared: count\)") as raised:
            await bench.operator.finish()
        assert isinstance(raised.value.__cause__, StateNotDeclared)


async def test_state_is_out_of_reach_once_the_call_has_ended() -> None:
    kept: list[Any] = []

    class Keeping(Counting):
        async def async_invoke(self, value: Any, ctx: InvocationContext) -> list[Any]:
            kept.extend([ctx, ctx.state(COUNT)])
            return []

    async with opened(Keeping(), key_by=str) as bench:
        await bench.feed("x")

        ctx, handle = kept
        for use in (lambda: ctx.state(COUNT), handle.value, handle.clear, lambda: handle.update(1)):
            with pytest.raises(StateAccessOutsideInvocation, match="await every task that it started"):
                use()


@pytest.mark.parametrize(
    ("kind", "missing"),
    [
        (AsyncFunction, "async_invoke"),
        (AsyncBatchFunction, "async_invoke_batch"),
        (BlockingFunction, "invoke"),
        (CallbackFunction, "async_invoke"),
        (RetryPolicy, "delay_after"),
    ],
)
def test_what_does_not_say_what_it_does_is_refused_before_it_is_used(kind: type[Any], missing: str) -> None:
    class Empty(kind):  # type: ignore[misc]
        pass

    with pytest.raises(TypeError, match=f"Empty.*{missing}"):
        Empty()


@dataclass
class Unstorable:
    """Of a kind that a snapshot cannot hold without running code on restore."""


@pytest.mark.behaviour("what cannot be stored is an error, and nothing is stored")
async def test_a_value_that_cannot_be_stored_fails_its_element_after_a_restore_and_no_other() -> None:
    letters: list[Any] = []
    options: dict[str, Any] = {"on_error": "dead_letter", "dead_letters": letters.append, "mode": "ordered"}
    async with opened(Service(), **options) as bench:
        for number, value in enumerate([1, Unstorable(), "half an emoji \ud83d", 2]):
            await bench.operator.process(value, element_id=f"row-{number}")
        stored = await commit(await bench.operator.snapshot())
    async with opened(Instant(), restore=stored.restore(0), **options) as bench:
        await bench.operator.finish()

        assert bench.shown == [1, 2]
        assert [(letter.idempotency_key, letter.attempts) for letter in letters] == [("row-1", 0), ("row-2", 0)]
        assert all(isinstance(letter.error, ValueRefused) for letter in letters)
        assert letters[1].value.text == r"'half an emoji \ud83d'"
    with pytest.raises(ElementFailed, match=r"id row-1\).*its value could not be stored: UnstorableValue"):
        async with opened(Instant(), restore=stored.restore(0)):
            pass


async def test_outputs_that_cannot_be_stored_fail_their_element_after_a_restore_and_no_other() -> None:
    letters: list[Any] = []
    options: dict[str, Any] = {"on_error": "dead_letter", "dead_letters": letters.append, "mode": "ordered"}
    service = Service()
    async with opened(service, **options) as bench:
        await bench.feed("first", "second", "third")
        await service.answer("second", outputs=[Unstorable()])
        await service.answer("third", outputs=["3"])
        stored = await commit(await bench.operator.snapshot())
    async with opened(Instant(), restore=stored.restore(0), **options) as bench:
        await bench.operator.finish()

        assert bench.shown == ["first", "3"]
        assert ["its outputs could not be stored" in str(letter.error) for letter in letters] == [True]


async def counted(**options: Any) -> Snapshot:
    """Return a snapshot of a count, taken by an operator with 16 key groups."""
    settings: dict[str, Any] = {"key_by": str, "max_parallelism": 16} | options
    function = settings.pop("function", None) or Counting()
    async with opened(function, **settings) as bench:
        await bench.feed("x")
        return await commit(await bench.operator.snapshot())


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"hash": "flink"}, "hash of the snapshot is 'xxhash64', but 'flink' is needed"),
        ({"max_parallelism": 32}, "max parallelism of the snapshot is 16, but 32 is needed"),
        ({"parallelism": 2}, "restored parallelism of the snapshot is 1, but 2 is needed"),
        (
            {"function": Counting(ValueState("count", pa.string()))},
            r"state 'count' of the snapshot is \('value', 'int64'\)",
        ),
        ({"function": Counting(ValueState("visits"))}, "declare it in the function's states"),
        ({"function": Service()}, "declare it in the function's states"),
    ],
    ids=["hash", "max parallelism", "parallelism", "type of a state", "other state", "no state"],
)
async def test_a_snapshot_that_does_not_fit_is_refused(options: dict[str, Any], what: str) -> None:
    snapshot = await counted()
    settings: dict[str, Any] = {"key_by": str, "max_parallelism": 16} | options
    bench = Bench(settings.pop("function", Counting()), **settings)

    with pytest.raises(IncompatibleSnapshot, match=what):
        await bench.operator.open(snapshot.restore(0))
    await bench.operator.close()


async def test_the_share_of_another_subtask_is_refused() -> None:
    snapshot = await counted()
    bench = Bench(Counting(), key_by=str, parallelism=2, subtask_index=1)

    with pytest.raises(IncompatibleSnapshot, match="restored subtask of the snapshot is 0, but 1 is needed"):
        await bench.operator.open(snapshot.restore(0, 2))


async def test_a_state_that_is_new_starts_empty() -> None:
    snapshot = await counted()
    new = ValueState("new", default="nothing yet")

    class Both(Counting):
        async def async_invoke(self, value: Any, ctx: InvocationContext) -> list[Any]:
            return [ctx.state(COUNT).value(), ctx.state(new).value()]

    async with opened(Both(COUNT, new), key_by=str, restore=snapshot.restore(0)) as bench:
        await bench.feed("x", "y")

        assert bench.shown == [1, "nothing yet", 0, "nothing yet"]


async def test_values_of_every_storable_kind_come_back_as_they_were() -> None:
    value = [None, True, 1, 2.5, "text", b"bytes", (1, 2), {"k": [1]}, {3}, dt.date(2024, 2, 29), dt.timedelta(1)]
    async with opened(Service(), mode="ordered") as bench:
        await bench.feed(value)
        snapshot = await commit(await bench.operator.snapshot())

    service = Service()
    async with opened(service, restore=snapshot.restore(0)):
        assert service.called == [value]


async def test_a_damaged_manifest_entry_is_an_error_of_open() -> None:
    snapshot = await counted()
    [file] = [file for file in snapshot.manifest.files if file.kind == "keyed"]
    manifest = replace(snapshot.manifest, files=(replace(file, path="data/nowhere.parquet"),))
    bench = Bench(Counting(), key_by=str)

    with pytest.raises(Exception, match="nowhere.parquet"):
        await bench.operator.open(Snapshot(snapshot.folder, manifest).restore(0))
        await bench.feed("x")
        await bench.operator.finish()
    await bench.operator.close()


@pytest.mark.parametrize("function", [Service, Doubles], ids=["single", "batch"])
@pytest.mark.parametrize("timestamp", [1.5, True, "now", dt.datetime(2026, 3, 1, tzinfo=dt.UTC), 2**70], ids=str)
async def test_a_timestamp_is_an_integer_of_milliseconds(timestamp: Any, function: Any) -> None:
    async with opened(function()) as bench:
        with pytest.raises(ConfigError, match="timestamp=.*milliseconds"):
            await bench.operator.process("x", timestamp)
        with pytest.raises(ConfigError, match="timestamp=.*milliseconds"):
            await bench.operator.process_watermark(timestamp)
        assert not bench.operator.statistics().in_flight


async def test_a_watermark_has_a_timestamp() -> None:
    async with opened(Service()) as bench:
        with pytest.raises(ConfigError, match="timestamp=None"):
            await bench.operator.process_watermark(None)  # type: ignore[arg-type]


@pytest.mark.parametrize("element_id", [5, b"row", ("a", 1), True, "\ud83d"], ids=ascii)
async def test_an_id_is_text_that_a_snapshot_can_hold(element_id: Any) -> None:
    async with opened(Service()) as bench:
        with pytest.raises(ConfigError, match="element_id="):
            await bench.operator.process("x", 1, element_id)
        assert not bench.operator.statistics().in_flight
