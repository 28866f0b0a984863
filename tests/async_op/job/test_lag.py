"""The progress of a job adds up what its source knows of the records that were not read yet."""

from __future__ import annotations

from typing import Any

from async_op.job.positions import Positions
from tests.async_op.job.kit import Epochs, Log, new_job, running, same
from tests.async_op.kit import eventually


class Counted(Log):
    """Knows how long its partitions will be."""

    def lag(self, partition: Any, position: Any) -> int | None:
        return None if partition == 2 else 10 - (position or 0)


async def test_the_lag_is_that_of_all_partitions_which_know_it() -> None:
    job = new_job(Counted([1, 2, 3], [4], [5]), same, Epochs())
    async with running(job):
        await eventually(lambda: job.progress().records == 5)
        assert job.progress().lag == 7 + 9


async def test_a_source_that_does_not_know_has_no_lag() -> None:
    job = new_job(Log([1]), same, Epochs())
    async with running(job):
        await eventually(lambda: job.progress().records == 1)
        assert job.progress().lag is None


def test_a_partition_may_be_found_while_another_thread_asks_for_the_lag() -> None:
    positions = Positions(None, None, "")

    class Growing(Counted):
        def lag(self, partition: Any, position: Any) -> int | None:
            """Stand for what the event loop does between two steps of the other thread."""
            positions.found([*positions.partitions, f"{len(positions.partitions)}"], 0.0)
            return 1

    positions.found(["0", "1"], 0.0)
    assert positions.lag(Growing()) == 2
