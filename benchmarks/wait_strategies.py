"""What a wait strategy costs: processor time against latency, for a thread that waits for another one.

A thread puts mail at fixed intervals, and the measured thread waits for it with one strategy. Latency is
the time from the put to the moment at which the mail runs. Processor time is that of the waiting thread alone.

Then a task of the transform on Spark, without Spark, waits with the strategy for rows, for room and for outputs, while
calls take 20 ms. Here the processor time is the whole process's: a thread that spins takes it, and the interpreter
lock from the event loop.

    python -m benchmarks.wait_strategies --json
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import threading
import time
from dataclasses import asdict, dataclass
from functools import partial

import pyarrow as pa

from async_op.functions.plain import as_function
from async_op.threads.mailbox import Mail, Mailbox
from async_op.threads.wait_strategies import (
    ParkWait,
    ProgressiveWait,
    WaitSituation,
    WaitStrategies,
    WaitStrategy,
)
from async_op.threads.waits import Waits
from benchmarks._tasks import transform

STRATEGIES: dict[str, WaitStrategy] = {
    "ParkWait(0.1), the default": ParkWait(0.1),
    "ParkWait(), Storm's": ParkWait(),
    "ProgressiveWait(0, 0), Storm's for sources": ProgressiveWait(level1_count=0, level2_count=0),
    "ProgressiveWait(), Storm's for the rest": ProgressiveWait(),
    "ParkWait(0), spins": ParkWait(0),
}
INTERVALS_MILLISECONDS = (1, 20)
_CALL_SECONDS, _CAPACITY, _BATCH, _ROWS = 0.02, 20, 100, 3_000
"""A task with 20 calls at once, of 20 ms each, can do 1,000 rows per second."""


@dataclass(frozen=True)
class Measured:
    """What one strategy did with mail at one interval; times in microseconds, the processor as a share of the time."""

    strategy: str
    interval_milliseconds: int
    median_microseconds: float
    high_microseconds: float
    processor: float


def measure(name: str, interval_milliseconds: int, mails: int) -> Measured:
    """Let a thread wait for mail, and return what it took."""
    mailbox = Mailbox()
    latencies: list[float] = []
    sender = threading.Thread(target=_send, args=(mailbox, interval_milliseconds / 1000, mails, latencies))
    waits = Waits(WaitStrategies(consume=STRATEGIES[name]))
    started, processor = time.perf_counter(), time.thread_time()
    sender.start()
    while len(latencies) < mails:
        waits.until(mailbox.has_mail, mailbox.arrival, lambda: WaitSituation.CONSUME)
        mailbox.create_batch()
        while (mail := mailbox.take()) is not None:
            mail.run()
    share = (time.thread_time() - processor) / (time.perf_counter() - started)
    sender.join()
    *_, high = statistics.quantiles(latencies, n=20)
    return Measured(name, interval_milliseconds, 1e6 * statistics.median(latencies), 1e6 * high, share)


def _send(mailbox: Mailbox, interval: float, mails: int, latencies: list[float]) -> None:
    for _ in range(mails):
        time.sleep(interval)
        put = time.perf_counter()
        mailbox.put(Mail(partial(_arrived, put, latencies)))


def _arrived(put: float, latencies: list[float]) -> None:
    latencies.append(time.perf_counter() - put)


@dataclass(frozen=True)
class MeasuredTask:
    """What one strategy cost a task: rows per second, and the processor's time of a row in microseconds."""

    strategy: str
    rows_per_second: float
    processor_microseconds: float


def measure_task(name: str, rows: int) -> MeasuredTask:
    """Run a task whose input comes in small batches, and return what it took."""
    strategy = STRATEGIES[name]
    strategies = WaitStrategies(source=strategy, consume=strategy, back_pressure=strategy)
    batches = (pa.RecordBatch.from_pydict({"id": range(begin, begin + _BATCH)}) for begin in range(0, rows, _BATCH))
    schema = pa.schema([("id", pa.int64())])
    started, processor = time.perf_counter(), time.process_time()
    transform(as_function(_call), schema, batches, _CAPACITY, strategies)
    seconds, processor = time.perf_counter() - started, time.process_time() - processor
    return MeasuredTask(name, rows / seconds, 1e6 * processor / rows)


def measure_tasks(rows: int) -> list[MeasuredTask]:
    """Return the best of three tasks with each strategy, by turns."""
    rounds = [[measure_task(name, rows) for name in STRATEGIES] for _ in range(3)]
    return [
        MeasuredTask(name, max(one.rows_per_second for one in runs), min(one.processor_microseconds for one in runs))
        for name, runs in zip(STRATEGIES, zip(*rounds, strict=True), strict=True)
    ]


async def _call(row: dict[str, int]) -> dict[str, int]:
    await asyncio.sleep(_CALL_SECONDS)
    return row


def main() -> None:
    """Measure every strategy at every interval."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="machine-readable")
    parser.add_argument("--repeats", type=int, default=1, help="multiplies the mails of each case (default: 1)")
    arguments = parser.parse_args()
    found = [
        measure(name, interval, arguments.repeats * 400 // interval + 50)
        for interval in INTERVALS_MILLISECONDS
        for name in STRATEGIES
    ]
    tasks = measure_tasks(arguments.repeats * _ROWS)
    if arguments.json:
        json.dump([asdict(one) for one in (*found, *tasks)], sys.stdout, indent=2)
        return
    print("strategy | mail every | median latency | 95th percentile | processor")
    for one in found:
        times = f"{one.median_microseconds:.0f} µs | {one.high_microseconds:.0f} µs"
        print(f"{one.strategy} | {one.interval_milliseconds} ms | {times} | {100 * one.processor:.1f} %")
    print("strategy | rows per second | processor time of a row")
    for task in tasks:
        print(f"{task.strategy} | {task.rows_per_second:.0f} | {task.processor_microseconds:.0f} µs")


if __name__ == "__main__":
    main()
