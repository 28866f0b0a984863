"""The operator with its keyed state on the local disk."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from async_op import AsyncDataStream, AsyncFunction, AsyncWaitOperator, InvocationContext, Record
from keygroups import ConfigError, DiskStateBackend, ListState, ValueState
from snapshots import Snapshot, SnapshotStore, SubtaskRestore, SubtaskSnapshot
from tests.async_op.kit import new_store

SUM = ValueState("sum", pa.int64(), default=0)
SEEN = ListState("seen", pa.int64())
KEYS = 7


class Adding(AsyncFunction):
    """Adds to the sum of a key and appends to its list; the output is both."""

    states = (SUM, SEEN)

    async def async_invoke(self, value: int, ctx: InvocationContext) -> Any:
        total, seen = ctx.state(SUM), ctx.state(SEEN)
        total.update(total.value() + value)
        seen.add(value)
        return [(value % KEYS, total.value(), tuple(seen.get()))]


class Failing(Adding):
    """Fails as it is closed."""

    async def close(self) -> None:
        raise RuntimeError("the client is gone")


def key_of(value: int) -> int:
    return value % KEYS


def expected(count: int) -> dict[int, tuple[int, int, tuple[int, ...]]]:
    values = {key: tuple(range(key, count, KEYS)) for key in range(KEYS)}
    return {key: (key, sum(seen), seen) for key, seen in values.items()}


def written(store: SnapshotStore, cuts: list[SubtaskSnapshot]) -> Snapshot:
    """Write a cut that nobody else has."""
    return store.write([cuts.pop()])


def left_in(backend: DiskStateBackend) -> int:
    """Return how many directories of subtasks there are."""
    assert backend.directory is not None
    return len(list(Path(backend.directory).iterdir()))


@pytest.fixture
def on_disk(tmp_path: Path) -> DiskStateBackend:
    return DiskStateBackend(tmp_path / "state", cache_bytes=2**20)


@pytest.mark.parametrize("preload", [True, False])
async def test_state_moves_between_disk_and_memory_by_snapshots(on_disk: DiskStateBackend, preload: bool) -> None:
    store, outputs = new_store(), list[Any]()
    restore: SubtaskRestore | None = None
    for part, backend in enumerate((on_disk, "memory", on_disk, on_disk, "memory")):
        operator = AsyncWaitOperator(
            Adding(),
            outputs.append,
            mode="ordered",
            key_by=key_of,
            max_parallelism=16,
            state_backend=backend,  # type: ignore[arg-type]
        )
        await operator.open(restore, preload=preload)
        for value in range(100 * part, 100 * part + 100):
            await operator.process(value)
        await operator.finish()
        # Who frees the last cut of a closed operator removes its files; so it is freed as it is written.
        cuts = [await operator.snapshot()]
        restore = (await asyncio.to_thread(written, store, cuts)).restore(0)
        await operator.close()

    newest = {record.value[0]: record.value for record in outputs if isinstance(record, Record)}
    assert newest == expected(500)
    assert left_in(on_disk) == 0


async def test_the_directory_is_removed_however_the_function_closes(on_disk: DiskStateBackend) -> None:
    operator = AsyncWaitOperator(Failing(), [].append, key_by=key_of, state_backend=on_disk)
    await operator.open()
    await operator.process(1)
    assert left_in(on_disk) == 1
    with pytest.raises(RuntimeError, match="the client is gone"):
        await operator.close()

    assert left_in(on_disk) == 0


async def test_a_stream_takes_the_choice(on_disk: DiskStateBackend) -> None:
    stream = AsyncDataStream.ordered_wait(range(50), Adding(), key_by=key_of, state_backend=on_disk)

    assert {output[0]: output async for output in stream} == expected(50)
    assert left_in(on_disk) == 0


def test_any_other_choice_is_refused() -> None:
    with pytest.raises(ConfigError, match="use 'memory' or a DiskStateBackend"):
        AsyncWaitOperator(Adding(), [].append, key_by=key_of, state_backend="disk")  # type: ignore[arg-type]
