"""Whatever is passed where a user passes something: it works, or it is an error of this project, never a raw one."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import async_op
import keygroups
from async_op import connectors, testing
from snapshots import SnapshotStore
from tests.doors.odd import Odd, check_odd, some_odd


async def call(value: Any) -> Any:
    return value


def of_one(value: Any) -> Any:
    return value


def a_stream(**given: Any) -> None:
    async def to_its_end() -> None:
        async for _ in async_op.AsyncDataStream.ordered_wait(**given):
            pass

    asyncio.run(to_its_end())


def an_operator(**given: Any) -> None:
    async def to_its_end() -> None:
        async with async_op.AsyncWaitOperator(**given) as operator:
            await operator.process("tea")
            await operator.finish()

    asyncio.run(to_its_end())


_RETRY = {"max_attempts": 3, "retry_on": None, "retry_if_result": None}
_TYPED = {"name": "state", "type": None}
_FADING = _TYPED | {"ttl": None}
_SINK = {"on_error": "fail", "retry": None, "dead_letters": None}
_BROKER = {"bootstrap.servers": "localhost:1"}
_OPERATOR = {"function": call, "on_error": "fail", "state_backend": "memory", "capacity": 5} | dict.fromkeys(
    ("key_by", "clock", "dead_letters", "timeout", "retry", "resilience")
)
_OF_STREAM = dict.fromkeys(("output_schema", "wait_strategies", "timestamps", "watermark_delay", "snapshots", "job_id"))

DOORS: list[tuple[Callable[..., Any], dict[str, Any]]] = [
    (keygroups.ValueState, _FADING | {"default": 0}),
    (keygroups.ListState, _FADING),
    (keygroups.MapState, _FADING),
    (keygroups.ReducingState, _FADING | {"reduce": max}),
    (keygroups.AggregatingState, _FADING | {"create": list, "add": lambda one, other: one, "result": len}),
    (keygroups.OperatorListState, _TYPED | {"mode": "split"}),
    (keygroups.OperatorMapState, _TYPED),
    (keygroups.StateTtl, {"seconds": 5, "update": "write"}),
    (keygroups.DiskStateBackend, {"directory": None, "cache_bytes": 2**26}),
    (keygroups.KeyGroupRange, {"start": 0, "end": 3}),
    (keygroups.key_group_of, {"key": "a", "max_parallelism": 8, "hash": "xxhash64"}),
    (keygroups.key_groups_of, {"keys": ["a"], "max_parallelism": 8, "hash": "xxhash64"}),
    (keygroups.plan_rescale, {"old_parallelism": 1, "new_parallelism": 2, "max_parallelism": 8}),
    (keygroups.range_of, {"subtask_index": 0, "parallelism": 2, "max_parallelism": 8}),
    (keygroups.subtask_of, {"key_group": 0, "parallelism": 2, "max_parallelism": 8}),
    (keygroups.default_max_parallelism, {"parallelism": 3}),
    (keygroups.register_codec, {"name": "odd", "type": Odd, "encode": of_one, "decode": of_one}),
    (async_op.AdaptiveConcurrency, {"minimum": 1, "maximum": 5, "slow_seconds": 1.0, "decrease": 0.5}),
    (async_op.Budget, {"limit": 5, "unit": "calls", "cost": None}),
    (async_op.Cache, {"key": of_one, "max_entries": 5, "ttl_seconds": 1.0, "empty": False}),
    (
        async_op.CircuitBreaker,
        {"failure_rate": 0.5, "window": 20, "open_seconds": 3.0, "probes": 1, "when_open": "wait"},
    ),
    (
        async_op.ExponentialBackoffRetry,
        _RETRY | {"initial_delay": 1.0, "max_delay": 2.0, "multiplier": 2.0, "jitter": True},
    ),
    (async_op.FixedDelayRetry, _RETRY | {"delay": 1.0}),
    (async_op.ParkWait, {"park_seconds": 0.1}),
    (async_op.ProgressiveWait, {"level1_count": 1, "level2_count": 2, "level3_sleep_seconds": 0.1}),
    (async_op.RateLimit, {"per_second": 5.0, "burst": None, "cost": None, "unit": None}),
    (
        async_op.Resilience,
        dict.fromkeys(
            ("cache", "single_flight", "concurrency", "circuit_breaker", "rate_limit", "failure_on", "budget")
        ),
    ),
    (async_op.RestartPolicy, {"max_restarts": 3, "initial_delay": 1.0, "max_delay": 5.0, "reset_after": 5.0}),
    (async_op.Retention, {"keep_last": 3, "min_age": 5.0}),
    (async_op.SingleFlight, {"key": of_one}),
    (
        async_op.Step,
        {"function": call, "mode": "unordered", "on_error": "fail", "state_backend": "memory", "capacity": 5}
        | dict.fromkeys(("name", "timeout", "retry", "resilience", "key_by", "value_type")),
    ),
    (async_op.WaitStrategies, dict.fromkeys(("source", "consume", "back_pressure"), async_op.ParkWait())),
    (async_op.function, {"states": (), "operator_states": (), "max_threads": None, "on": "auto"}),
    (async_op.seconds_to_wait, {"headers": {}, "default": 1.0, "maximum": 5.0}),
    (async_op.shared, {"key": "client", "factory": list}),
    (a_stream, _OPERATOR | {"stream": ["tea"]} | _OF_STREAM),
    (
        an_operator,
        _OPERATOR
        | {"output": print, "mode": "unordered", "parallelism": 1, "subtask_index": 0, "hash": "xxhash64"}
        | dict.fromkeys(("max_parallelism", "idempotency_namespace")),
    ),
    (
        async_op.Job,
        {"source": [1], "steps": call, "sink": print, "snapshots": "snapshots", "job_id": "odd", "hash": "xxhash64"}
        | {"retention": async_op.Retention()}
        | dict.fromkeys(("parallelism", "max_parallelism", "snapshot_interval", "watermark_delay", "idle_timeout"))
        | dict.fromkeys(("dead_letters", "restart", "processes", "idempotency_namespace", "storage_options")),
    ),
    (SnapshotStore, {"uri": "snapshots", "operator_id": "odd", "storage_options": None}),
    (
        testing.OperatorHarness,
        {"step": call, "parallelism": 1, "max_parallelism": None, "hash": "xxhash64", "start": 0},
    ),
    (testing.RecordedService, {"path": "answers.jsonl", "record": None}),
    (
        connectors.FileSink,
        _SINK | {"folder": "out", "format": "csv", "delimiter": ",", "schema": None, "storage_options": None},
    ),
    (
        connectors.FileSource,
        {"glob": "*.json", "format": "json", "bounded": True, "timestamp": None, "poll_interval": 1.0}
        | {"hive_partitioning": None, "delimiter": ",", "columns": None}
        | {"max_record_bytes": 100, "on_error": "fail", "on_replaced": "fail", "retry": None, "storage_options": None},
    ),
    (connectors.DeltaSink, _SINK | {"table": "t", "name": "odd", "schema": None, "storage_options": None}),
    (connectors.IcebergSink, _SINK | {"table": "a.t", "name": "odd", "catalog": {}, "schema": None}),
    (connectors.KafkaSink, _SINK | {"topic": "t", "name": "odd", "config": _BROKER}),
    (
        connectors.KafkaSource,
        {"topic": "t", "config": _BROKER, "beginning": "earliest", "bounded": False, "on_error": "fail", "retry": None},
    ),
    (connectors.PostgresSink, _SINK | {"url": "postgresql://localhost/x", "table": "t", "name": "odd"}),
]
VISITS, PAGES = keygroups.ValueState("visits"), keygroups.ListState("pages")
PRICES, OFFSETS = keygroups.MapState("prices"), keygroups.OperatorListState("offsets")


def a_store() -> SnapshotStore:
    store = SnapshotStore(f"memory://odd-{uuid.uuid4().hex}", "odd")
    store.bootstrap({VISITS: {"ann": 1}, PAGES: {"ann": ["/"]}}, parallelism=2, max_parallelism=8)
    return store


def of_store(name: str) -> Callable[..., Any]:
    return named(f"store.{name}", lambda **given: getattr(a_store(), name)(**given))


def of_snapshot(name: str) -> Callable[..., Any]:
    return named(f"snapshot.{name}", lambda **given: getattr(a_store().load(), name)(**given))


def of_edit(name: str) -> Callable[..., Any]:
    return named(f"edit.{name}", lambda **given: getattr(a_store().edit(), name)(**given))


class Calls(async_op.AsyncFunction[Any, Any]):
    """Does what its element says, and keeps what that raises."""

    states = (VISITS, PAGES, PRICES)
    operator_states = (OFFSETS,)

    async def async_invoke(self, value: Any, ctx: async_op.InvocationContext) -> list[Any]:
        if callable(value):
            value(ctx)
        return []

    async def on_timer(self, timestamp: int, ctx: async_op.InvocationContext) -> list[Any]:
        return []


def of_harness(name: str) -> Callable[..., Any]:
    def called(**given: Any) -> None:
        step = async_op.Step(Calls(), key_by=lambda _: "ann", on_error="skip")
        with testing.OperatorHarness(step, max_parallelism=8) as harness:
            getattr(harness, name)(**given)

    return named(f"harness.{name}", called)


def in_call(path: str, of: Callable[[async_op.InvocationContext], Any]) -> Callable[..., Any]:
    name = path.rpartition(".")[2]

    def called(**given: Any) -> None:
        raised: list[Exception] = []

        def use(ctx: async_op.InvocationContext) -> None:
            try:
                getattr(of(ctx), name)(**given)
            except Exception as error:  # noqa: BLE001 - raised outside of the call
                raised.append(error)

        with testing.OperatorHarness(async_op.Step(Calls(), key_by=lambda _: "ann"), max_parallelism=8) as harness:
            harness.process(use)
            harness.advance(1)
        if raised:
            raise raised[0]

    return named(path, called)


def named(name: str, called: Callable[..., Any]) -> Callable[..., Any]:
    called.__qualname__ = name
    return called


_CLAIM = dict.fromkeys(("parallelism", "max_parallelism", "hash"))
_REWRITE = {"rewrite": False, "engine": "local", "max_parallelism": None, "hash": None, "spark": None, "progress": None}
_TIMER = {"timestamp": 10**13, "event_time": False}

DOORS += [
    (of_store("claim"), _CLAIM | {"accept_loss": False}),
    (of_store("collect_garbage"), {"keep_last": 10, "min_age": 5.0, "dry_run": True}),
    (of_store("load"), {"version": None}),
    (of_store("pin"), {"version": 1}),
    (of_store("unpin"), {"version": 1}),
    (of_store("verify"), {"version": None, "progress": None}),
    (of_store("repartition"), _REWRITE | {"parallelism": 3}),
    (of_snapshot("in_flight"), {"step": None}),
    (of_snapshot("restore"), {"subtask_index": 0, "parallelism": None, "step": None}),
    (of_snapshot("to_arrow"), {"state_name": "visits"}),
    (of_snapshot("to_reader"), {"state_name": "visits", "key_groups": None}),
    (of_edit("drop"), {"name": "visits"}),
    (of_edit("rename"), {"old": "visits", "new": "seen"}),
    (of_edit("put"), {"descriptor": PRICES, "rows": {"ann": {"tea": 1}}, "step": None}),
    (of_edit("put_items"), {"descriptor": OFFSETS, "items": [1], "step": None}),
    (of_edit("map_items"), {"state": "visits", "function": lambda key, value: {key: value}, "step": None}),
    (of_edit("transform"), {"state": "visits", "function": of_one, "step": None}),
    (of_edit("set_lineage"), {"lineage": None}),
    (of_harness("process"), {"value": 1, "timestamp": None, "element_id": None}),
    (of_harness("process_all"), {"values": [1]}),
    (of_harness("advance"), {"seconds": 1.0}),
    (of_harness("watermark"), {"timestamp": 1}),
    (in_call("ctx.state", lambda ctx: ctx), {"descriptor": VISITS}),
    (in_call("ctx.operator_state", lambda ctx: ctx), {"descriptor": OFFSETS}),
    (in_call("ctx.heed", lambda ctx: ctx), {"headers": {}, "maximum": 5.0}),
    (in_call("timers.register", lambda ctx: ctx.timers), _TIMER),
    (in_call("timers.delete", lambda ctx: ctx.timers), _TIMER),
    (in_call("visits.update", lambda ctx: ctx.state(VISITS)), {"value": 1}),
    (in_call("pages.add", lambda ctx: ctx.state(PAGES)), {"value": "/"}),
    (in_call("prices.put", lambda ctx: ctx.state(PRICES)), {"key": "tea", "value": 1}),
    (in_call("prices.put_all", lambda ctx: ctx.state(PRICES)), {"entries": {"tea": 1}}),
    (in_call("offsets.add", lambda ctx: ctx.operator_state(OFFSETS)), {"value": 1}),
    (in_call("offsets.update", lambda ctx: ctx.operator_state(OFFSETS)), {"values": [1]}),
]

ARGUMENTS = [(door, given, name) for door, given in DOORS for name in given]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("door", "given", "name"), ARGUMENTS, ids=[f"{door.__qualname__} {name}" for door, _, name in ARGUMENTS]
)
def test_an_odd_argument_works_or_is_an_error_with_a_name(
    door: Callable[..., Any],
    given: dict[str, Any],
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    pytestconfig: pytest.Config,
) -> None:
    monkeypatch.chdir(tmp_path)
    door(**given)

    is_quick = pytestconfig.getoption("quick")
    check_odd(door, given, name, some_odd(f"{door.__qualname__} {name}", is_quick=is_quick))

    assert list(tmp_path.iterdir()) == []
