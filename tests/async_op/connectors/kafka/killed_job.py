"""A job from topic to topic, in a process of its own that kills itself at a moment that it was told.

The brokers of these tests show records of aborted transactions to every reader. So records bear the id of their
transaction, a file has the ids of those that were committed, and the process dies at no moment at which nobody but the
broker knows which of the two it is.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import threading
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from async_op import AsyncFunction, InvocationContext, Job, Step
from async_op.connectors import KafkaSink, KafkaSource
from keygroups import ValueState
from keygroups.events import Event, listen

COUNT = ValueState("count", default=0)
MOMENTS = ("called", "committed", "writing", "in transaction", "written")
"""A call begins; a snapshot is committed; an epoch comes, is with the brokers, and has been written, but not marked."""

TRANSACTIONS = "transactions"
"""The name of the file with the ids of transactions that were committed."""


class Death:
    """When the process dies."""

    moment = ""
    after = 0
    undecided = threading.Lock()


def at(moment: str) -> None:
    """Die if this is the moment."""
    if moment == Death.moment:
        Death.after -= 1
        if not Death.after:
            with Death.undecided:
                os.kill(os.getpid(), signal.SIGKILL)


class Counting(AsyncFunction[Any, Any]):
    """Adds to a record how many of its key have come so far."""

    states = (COUNT,)

    def __init__(self, field: str) -> None:
        self.field = field

    async def async_invoke(self, value: Any, ctx: InvocationContext) -> list[Any]:
        at("called")
        await asyncio.sleep(0.002)  # so that there are cuts in between; nothing depends on it
        count = ctx.state(COUNT)
        count.update(count.value() + 1)
        return [value | {self.field: count.value()}]


class CountingRecords(Counting):
    """The first step, which reads what is in a record."""

    async def async_invoke(self, value: Any, ctx: InvocationContext) -> list[Any]:
        return await super().async_invoke(json.loads(value["value"]), ctx)


class Mortal(KafkaSink):
    """A sink that dies within an epoch."""

    def __init__(self, topic: str, server: str, transactions: Path) -> None:
        super().__init__(topic, topic, {"bootstrap.servers": server, "log_level": 0})
        self.transactions = transactions

    async def write(self, values: Sequence[Any], epoch: int) -> None:
        at("writing")
        await super().write([json.dumps(value) for value in values], epoch)
        at("written")

    def _commit(self, records: list[dict[str, Any]], epoch: int) -> None:
        transaction = uuid.uuid4().hex
        try:
            super()._commit([{"value": f"{transaction} {record['value']}"} for record in records], epoch)
            with self.transactions.open("a") as file:
                file.write(f"{transaction}\n")
        finally:
            Death.undecided.release()

    def _noted(self, epoch: int) -> Any:
        if epoch >= 0:  # within a transaction, which is committed next
            self._producer.flush(60)
            at("in transaction")
            Death.undecided.acquire()
        return super()._noted(epoch)


def user_of(record: dict[str, Any]) -> str:
    """Return the key of the first step."""
    return record["key"].decode()


def hear(event: Event) -> None:
    """Hear of commits."""
    if event.name == "snapshot":
        at("committed")


def main(source: str, sink: str, topic: str, folder: Path, parallelism: int) -> None:
    """Run the job until its process dies, or to the end of the topic if it need not."""
    listen(hear)
    Job(
        KafkaSource(topic, {"bootstrap.servers": source, "log_level": 0}, bounded=not Death.moment),
        [
            Step(CountingRecords("of_user"), "users", key_by=user_of, mode="key_ordered", capacity=10),
            Step(Counting("of_group"), "groups", key_by="group", mode="key_ordered", capacity=10),
        ],
        Mortal(topic, sink, folder / TRANSACTIONS),
        snapshots=folder,
        job_id="job",
        parallelism=parallelism,
        max_parallelism=16,
        snapshot_interval=0.02,
    ).run_sync()


if __name__ == "__main__":
    Death.moment, Death.after = sys.argv[6], int(sys.argv[7])
    main(*sys.argv[1:4], Path(sys.argv[4]), int(sys.argv[5]))
