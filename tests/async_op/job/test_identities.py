"""Idempotency keys of jobs: shared by no two elements, and kept whatever happens to the job."""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from async_op import AsyncFunction, InvocationContext, Job, Step
from async_op.connectors import FileSource
from keygroups.errors import ConfigError
from snapshots import IncompatibleSnapshot, SnapshotStore
from snapshots.lineage import LINEAGE
from tests.async_op.job.kit import Epochs, Log, new_job


class Service:
    """Does what it is asked for once for each idempotency key."""

    def __init__(self) -> None:
        self.done: Counter[str] = Counter()
        self.seen: dict[str, set[Any]] = {}

    def __call__(self, value: Any, key: str) -> None:
        self.done[key] += 1
        self.seen.setdefault(key, set()).add(repr(value))


class Pay(AsyncFunction[Any, Any]):
    """Pays for each element, and sets a timer of event time for some."""

    def __init__(self, service: Service, *, timers: bool = False) -> None:
        self.service = service
        self.timers = timers

    async def async_invoke(self, value: Any, ctx: InvocationContext) -> list[Any]:
        self.service(value, ctx.idempotency_key)
        return [value]


class PayWithTimers(Pay):
    """Pays again when a timer fires, one at the same time for the same key in each step."""

    async def async_invoke(self, value: Any, ctx: InvocationContext) -> list[Any]:
        self.service(value, ctx.idempotency_key)
        ctx.timers.register(7, event_time=True)
        ctx.timers.register(7, event_time=False)
        return [value]

    async def on_timer(self, timestamp: int, ctx: InvocationContext) -> list[Any]:
        self.service(("timer", ctx.key), ctx.idempotency_key)
        return []


async def test_two_jobs_with_one_service_both_have_all_their_calls_made() -> None:
    service, folder = Service(), f"memory://{uuid.uuid4().hex}"
    for day in ("monday", "tuesday"):
        await new_job([1, 2, 3], Step(Pay(service), "pay"), Epochs(), snapshots=folder, job_id=day).run()
    assert len(service.done) == 6


async def test_two_folders_with_equal_job_ids_share_no_keys() -> None:
    service = Service()
    for _ in range(2):
        await new_job([1, 2], Step(Pay(service), "pay"), Epochs(), job_id="pay").run()
    assert len(service.done) == 4


async def test_two_steps_and_their_timers_share_no_keys() -> None:
    service = Service()
    steps = [Step(PayWithTimers(service), name, key_by="user") for name in ("first", "second")]
    await new_job([{"user": "ann"}, {"user": "bob"}], steps, Epochs(), watermark_delay=0.0).run()
    assert len(service.done) == 2 * 2 * 3
    assert all(len(values) == 1 for values in service.seen.values())


async def test_equal_names_of_files_in_two_folders_share_no_keys(tmp_path: Path) -> None:
    service = Service()
    for folder in ("east", "west"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "orders.jsonl").write_text('{"id": 1}\n')
        source = FileSource(tmp_path / folder / "*.jsonl", "json")
        await new_job(source, Step(Pay(service), "pay"), Epochs(), idempotency_namespace="pay").run()
    assert len(service.done) == 2
    assert all(key.startswith("pay/pay/") and key.endswith("orders.jsonl@10") for key in service.done)


async def test_a_crash_before_the_first_commit_keeps_the_keys() -> None:
    service, folder = Service(), f"memory://{uuid.uuid4().hex}"

    class Crash(Pay):
        async def async_invoke(self, value: Any, ctx: InvocationContext) -> list[Any]:
            await super().async_invoke(value, ctx)
            arrived.set()
            await asyncio.Event().wait()
            return []

    arrived = asyncio.Event()
    options: dict[str, Any] = {"snapshots": folder, "snapshot_interval": 1000.0}
    crashing = asyncio.create_task(new_job([1], Step(Crash(service), "pay"), Epochs(), **options).run())
    await arrived.wait()
    crashing.cancel()
    await asyncio.gather(crashing, return_exceptions=True)
    assert SnapshotStore(folder, "job").newest_version() == 0

    await new_job([1], Step(Pay(service), "pay"), Epochs(), **options).run()
    assert list(service.done.values()) == [2]


async def test_a_rescale_and_a_restart_keep_the_keys_of_what_is_in_flight() -> None:
    service, folder = Service(), f"memory://{uuid.uuid4().hex}"
    waiting = asyncio.Event()

    class Slow(Pay):
        async def async_invoke(self, value: Any, ctx: InvocationContext) -> list[Any]:
            await super().async_invoke(value, ctx)
            await waiting.wait()
            return [value]

    def job(parallelism: int, sink: Epochs) -> Job:
        steps = [Step(Slow(service), "first", key_by="id"), Step(Pay(service), "second")]
        options: dict[str, Any] = {"snapshots": folder, "parallelism": parallelism, "max_parallelism": 8}
        return new_job(Log([{"id": number} for number in range(5)]), steps, sink, **options)

    for parallelism in (1, 3, 2):
        stopped = job(parallelism, Epochs())
        run = asyncio.create_task(stopped.run())
        calls = sum(service.done.values()) + 5
        while sum(service.done.values()) < calls:
            await asyncio.sleep(0)
        stopped.stop(drain=False)
        await run
    waiting.set()
    sink = Epochs()
    last = job(4, sink)
    run = asyncio.create_task(last.run())
    await sink.have(5)
    last.stop()
    await run
    assert len(service.done) == 10
    assert all(len(values) == 1 for values in service.seen.values())


async def test_after_a_loss_of_state_calls_are_repeated_unless_a_namespace_is_fixed() -> None:
    for namespace, keys in ((None, 4), ("payments", 2)):
        service = Service()
        for _ in range(2):
            step = Step(Pay(service), "pay")
            await new_job([1, 2], step, Epochs(), idempotency_namespace=namespace).run()  # a folder of its own
        assert len(service.done) == keys


async def test_another_namespace_is_refused_before_anything_is_claimed_or_called() -> None:
    service, folder = Service(), f"memory://{uuid.uuid4().hex}"
    step = Step(Pay(service), "pay")
    await new_job([1], step, Epochs(), snapshots=folder, idempotency_namespace="one").run()
    store, calls = SnapshotStore(folder, "job"), service.done.total()
    version = store.newest_version()
    with pytest.raises(IncompatibleSnapshot, match="'one'.*'two'"):
        await new_job([1], step, Epochs(), snapshots=folder, idempotency_namespace="two").run()
    assert (store.newest_version(), service.done.total()) == (version, calls)
    await new_job([1], step, Epochs(), snapshots=folder).run()
    assert store.load().manifest.lineage == "one"


@pytest.mark.parametrize("namespace", ["", "a/b", "é", "x" * 65, 7])
def test_a_namespace_is_a_name(namespace: Any) -> None:
    with pytest.raises(ConfigError, match="idempotency_namespace="):
        new_job([1], same_step(), Epochs(), idempotency_namespace=namespace)


def same_step() -> Step:
    async def same(value: Any) -> Any:
        return value

    return Step(same)


async def test_the_lineage_is_durable_before_the_first_call() -> None:
    folder = f"memory://{uuid.uuid4().hex}"
    store = SnapshotStore(folder, "job")
    found = []

    async def look(value: Any, ctx: InvocationContext) -> Any:
        found.append((store.folder.read(LINEAGE).decode(), ctx.idempotency_key))
        return value

    await new_job([1], Step(look, "look"), Epochs(), snapshots=folder).run()
    [(lineage, key)] = found
    assert key == f"{lineage}/look/0@1"
    assert store.load().manifest.lineage == lineage


def test_an_invalid_id_is_refused_under_the_name_of_its_argument() -> None:
    with pytest.raises(ConfigError, match="^job_id='a b'"):
        new_job([1], same_step(), Epochs(), job_id="a b")
