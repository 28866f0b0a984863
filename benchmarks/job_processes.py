"""What more processes bring to a job, and what they cost: `python -m benchmarks.job_processes`.

Figures per element are the difference of a long and a short run, so that the start of processes does not count.
Processor time tells what free cores would do, also on a machine that has none: a job is as fast as the busiest of its
processes. Pauses are the shortest of several, in one run.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import tempfile
import time
from collections.abc import AsyncIterator
from itertools import product
from pathlib import Path
from typing import Any

import aiohttp

from async_op import AsyncFunction, InvocationContext, Job, Step, shared
from async_op.connectors import Source
from async_op.threads.loop_thread import new_event_loop
from keygroups import ValueState

PAYLOAD = "x" * 150
ANSWER_SECONDS = 0.005
IN_FLIGHT = 10_000
STATE_KEYS = 1_000_000
_CUTS = 20
_REPORTED_SECONDS = 1.0
_FEW = 10
_TURNS = 3
_FEW_CALLS, _MANY_CALLS = 5_000, 45_000
_ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
_COUNT = ValueState("count", default=0)


def key_of(row: dict[str, Any]) -> int:
    """Return the key of a row."""
    return int(row["id"]) % 1000


def itself(number: int) -> int:
    """Return a number as its key."""
    return number


async def busy(row: dict[str, Any]) -> dict[str, Any]:
    """Keep a processor busy for a millisecond."""
    until = time.thread_time() + 0.001
    while time.thread_time() < until:
        pass
    return row


async def same(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row of some 200 bytes as it came in."""
    return row


async def never(number: int) -> int:
    """Wait for an answer that does not come."""
    await asyncio.Event().wait()
    return number


class Asking(AsyncFunction):
    """Asks an HTTP service for each row."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._session: aiohttp.ClientSession | None = None

    async def open(self, ctx: Any) -> None:
        """Share one session among the subtasks of a process."""
        self._session = await shared("session", lambda: aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)))

    async def async_invoke(self, value: dict[str, Any], ctx: InvocationContext) -> list[Any]:
        """Ask."""
        assert self._session is not None, "it is open"
        async with self._session.get(self._url) as answer:
            return [await answer.read()]


class Counting(AsyncFunction):
    """Counts the elements of each key."""

    states = (_COUNT,)

    async def async_invoke(self, value: int, ctx: InvocationContext) -> list[Any]:
        """Count."""
        count = ctx.state(_COUNT)
        count.update(count.value() + 1)
        return []


class Trickle(Source[int]):
    """Yields so many numbers at once, and then one now and then, without end."""

    bounded = False

    def __init__(self, count: int) -> None:
        self._count = count

    def partitions(self) -> list[int]:
        """Return the only partition."""
        return [0]

    async def read(self, partition: Any, position: Any) -> AsyncIterator[Any]:
        """Yield numbers."""
        place = position or 0
        while True:
            yield place, None, place + 1
            place += 1
            if place >= self._count:
                await asyncio.sleep(0.01)


def new_job(source: Any, step: Step, folder: str | Path, processes: int | None, **options: Any) -> Job:
    """Return a job whose outputs go nowhere."""
    return Job(
        source,
        step,
        lambda values, epoch: None,
        snapshots=folder,
        job_id="job",
        processes=processes,
        **{"parallelism": processes or 1, "snapshot_interval": 1.0} | options,
    )


def run(function: Any, count: int, processes: int, capacity: int) -> list[float]:
    """Return the seconds of a job with so many rows, and the processor time of the parent and of each child."""
    rows = [{"id": number, "payload": PAYLOAD} for number in range(count)]
    with tempfile.TemporaryDirectory() as folder:
        job = new_job(rows, Step(function, "step", key_by=key_of, capacity=capacity), folder, processes)
        began, used = time.perf_counter(), time.process_time()
        job.run_sync()
        of_children = [child.processor_seconds for child in job.progress().children]
        return [time.perf_counter() - began, time.process_time() - used, *of_children]


def per_element(function: Any, short: int, long: int, processes: int, capacity: int = 100) -> list[float]:
    """Return the microseconds of an element: in all, and of each processor's time."""
    first, second = run(function, short, processes, capacity), run(function, long, processes, capacity)
    return [1e6 * (after - before) / (long - short) for before, after in zip(first, second, strict=True)]


class Answering(asyncio.Protocol):
    """Answers HTTP requests after five milliseconds, for as little processor time as Python can."""

    def connection_made(self, transport: Any) -> None:
        """Begin."""
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Answer: a client sends a request once it has the answer to the one before."""
        asyncio.get_running_loop().call_later(ANSWER_SECONDS, self._transport.write, _ANSWER)


def serve(port: Any) -> None:
    """Answer HTTP requests until the process is ended."""

    async def live() -> None:
        server = await asyncio.get_running_loop().create_server(Answering, "127.0.0.1", 0)
        port.send(server.sockets[0].getsockname()[1])
        await asyncio.Event().wait()

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(live())


def http() -> dict[str, float]:
    """Return the processor time that the busiest process of a job needs for a call, with several numbers of them."""
    own, port = multiprocessing.Pipe()
    server = multiprocessing.get_context("spawn").Process(target=serve, args=(port,), daemon=True)
    server.start()
    asking = Asking(f"http://127.0.0.1:{own.recv()}/")
    used: dict[tuple[int, int], list[float]] = {}
    try:
        for _ in range(_TURNS):
            for processes, calls in product((1, 2, 4), (_FEW_CALLS, _MANY_CALLS)):
                used.setdefault((processes, calls), []).append(max(run(asking, calls, processes, 64)[1:]))
    finally:
        server.terminate()
        server.join()
    return {
        f"HTTP, us a call of the busiest of {processes}": 1e6
        * (min(used[processes, _MANY_CALLS]) - min(used[processes, _FEW_CALLS]))
        / (_MANY_CALLS - _FEW_CALLS)
        for processes in (1, 2, 4)
    }


async def running(job: Job) -> asyncio.Task[None]:
    """Start a job, and wait until it runs."""
    task = asyncio.ensure_future(job.run())
    while job.progress().state != "running":
        await asyncio.wait([task], timeout=0.01)
    return task


async def cut_seconds(processes: int | None) -> float:
    """Return the processor time of a snapshot with so much in flight: the first process's, and the busiest child's."""
    with tempfile.TemporaryDirectory() as folder:
        step = Step(never, "step", key_by=itself, capacity=IN_FLIGHT)
        job = new_job(Trickle(IN_FLIGHT), step, folder, processes, parallelism=2, snapshot_interval=1000.0)
        task = await running(job)
        while sum(job.progress().in_flight.values()) < IN_FLIGHT:
            await asyncio.wait([task], timeout=0.05)
        await job.snapshot()
        before = await used_so_far(job)
        for _ in range(_CUTS):
            await job.snapshot()
        after = await used_so_far(job)
        task.cancel()
        await asyncio.wait([task])
    own, *children = (late - early for early, late in zip(before, after, strict=True))
    return (own + max(children, default=0.0)) / _CUTS


async def used_so_far(job: Job) -> list[float]:
    """Return the processor time of this process, and of each child once it has reported."""
    await asyncio.sleep(_REPORTED_SECONDS)
    return [time.process_time(), *(child.processor_seconds for child in job.progress().children)]


async def rescale_seconds(keys: int, repeats: int) -> tuple[float, float]:
    """Return for how long a job with so many keys stands still when it is rescaled from 2 to 3, and back."""
    pauses: dict[int, list[float]] = {2: [], 3: []}
    with tempfile.TemporaryDirectory() as folder:
        step = Step(Counting(), "step", key_by=itself, capacity=1000)
        job = new_job(Trickle(keys), step, folder, 2, max_parallelism=128)
        task = await running(job)
        while job.progress().records < keys or sum(job.progress().in_flight.values()) > _FEW:
            await asyncio.wait([task], timeout=0.05)
        for parallelism in (3, 2) * repeats:
            await job.snapshot()
            job.rescale(parallelism)
            while job.progress().state == "running":
                await asyncio.wait([task], timeout=0)
            began = time.perf_counter()
            while job.progress().state == "rescaling":
                await asyncio.wait([task], timeout=0.001)
            pauses[parallelism].append(time.perf_counter() - began)
        task.cancel()
        await asyncio.wait([task])
    return min(pauses[3]), min(pauses[2])


def measure(repeats: int) -> dict[str, float]:
    """Return all figures."""
    one, *one_used = per_element(busy, 500, 4500, 1)
    two, *two_used = per_element(busy, 500, 4500, 2)
    _, parent, *_ = per_element(same, 5_000, 105_000, 2)
    alone, together = asyncio.run(cut_seconds(None)), asyncio.run(cut_seconds(2))
    more, fewer = asyncio.run(rescale_seconds(STATE_KEYS, repeats))
    return {
        "busy calls, 2 processes / 1": one / two,
        "the same in processor time": max(one_used) / max(*two_used, sum(two_used) / 2),
        "parent, us an element": parent,
        "cut in one loop, s of processor time": alone,
        "cut of 2 processes / one loop": together / alone,
        "rescale from 2 to 3, s": more,
        "rescale from 3 to 2, s": fewer,
        **http(),
    }


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="machine-readable")
    parser.add_argument("--repeats", type=int, default=3, help="rescales in each direction (default: 3)")
    arguments = parser.parse_args()
    found = measure(arguments.repeats)
    if arguments.json:
        print(json.dumps(found))
    else:
        for name, value in found.items():
            print(f"{name:42} {value:8.3f}")


if __name__ == "__main__":
    main()
