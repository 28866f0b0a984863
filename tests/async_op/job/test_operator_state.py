"""State without a key in the functions of a job."""

from __future__ import annotations

from typing import Any

import pytest

from async_op import AsyncFunction, ItemsNotGiven, Job, Step
from async_op.functions.runtime import Runtime
from keygroups import OperatorListState
from snapshots import SnapshotStore
from tests.async_op.job.kit import Epochs, Log, new_job, running
from tests.async_op.kit import eventually

RECEIPTS = OperatorListState("receipts")


class Acknowledge(AsyncFunction):
    """Remembers a receipt for each value, and acknowledges what a complete snapshot holds."""

    operator_states = (RECEIPTS,)
    acknowledged: list[int]

    async def open(self, runtime: Runtime) -> None:
        self.receipts = runtime.operator_state(RECEIPTS)

    async def async_invoke(self, value: int, ctx: Any) -> list[int]:
        self.receipts.add(value)
        return [value]

    async def snapshot_complete(self, version: int) -> None:
        done = self.receipts.in_snapshot()
        self.acknowledged += done
        self.receipts.update([one for one in self.receipts.get() if one not in done])


def acknowledging() -> Acknowledge:
    function = Acknowledge()
    function.acknowledged = []
    return function


async def test_functions_acknowledge_what_is_committed_and_nothing_else() -> None:
    function, source, sink = acknowledging(), Log(range(4)), Epochs()
    job: Job = new_job(source, Step(function, name="acknowledge"), sink, parallelism=1, snapshots="memory://receipts")
    async with running(job):
        await sink.have(4)
        assert set(function.acknowledged) <= set(range(4))
        await job.snapshot()
        await eventually(lambda: sorted(function.acknowledged) == list(range(4)))
        await source.append(0, 4, 5)
        await sink.have(6)
        job.stop(drain=True)
    assert sorted(function.acknowledged) == list(range(6))


async def test_a_rescale_keeps_every_receipt() -> None:
    class Keep(Acknowledge):
        async def snapshot_complete(self, version: int) -> None:
            pass

    source, sink = Log(range(20), range(20, 40), bounded=True), Epochs()
    await new_job(source, Step(Keep(), name="keep"), sink, parallelism=2, snapshots="memory://kept").run()
    await source.append(0, *range(40, 45))
    await new_job(source, Step(Keep(), name="keep"), sink, parallelism=3, snapshots="memory://kept").run()
    snapshot = SnapshotStore("memory://kept", "job").load()
    shares = [snapshot.restore(index, step="keep").operator_state("receipts") for index in range(3)]
    assert sorted(item for share in shares for item in share) == list(range(45))  # type: ignore[type-var]


class Offsets(AsyncFunction):
    """Keeps the greatest value of each remainder, and gives them at the cut."""

    operator_states = (RECEIPTS,)

    async def open(self, runtime: Runtime) -> None:
        self.offsets = dict(runtime.operator_state(RECEIPTS).get())

    async def async_invoke(self, value: int, ctx: Any) -> list[int]:
        self.offsets[value % 7] = value
        return [value]

    def snapshot_state(self, descriptor: OperatorListState) -> list[Any]:
        return sorted(self.offsets.items())


async def test_items_that_a_function_gives_at_the_cut_are_reassigned_by_a_rescale() -> None:
    source, sink = Log(range(20), bounded=True), Epochs()
    for parallelism in (1, 2, 3):
        job = new_job(source, Step(Offsets(), "offsets"), sink, parallelism=parallelism, snapshots="memory://given")
        await job.run()
        snapshot = SnapshotStore("memory://given", "job").load()
        shares = [snapshot.restore(index, step="offsets").operator_state("receipts") for index in range(parallelism)]
        assert sorted(item for share in shares for item in share) == [(n % 7, n) for n in (14, 15, 16, 17, 18, 19, 13)]


async def test_a_cut_without_the_items_of_a_function_fails_the_job_by_name() -> None:
    class Failing(Offsets):
        def snapshot_state(self, descriptor: OperatorListState) -> list[Any]:
            raise ConnectionError("the consumer is gone")

    job = new_job(Log(range(2), bounded=True), Step(Failing(), "offsets"), Epochs(), parallelism=1)
    with pytest.raises(ItemsNotGiven, match="'receipts': ConnectionError: the consumer is gone"):
        await job.run()
