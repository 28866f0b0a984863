"""HTTP calls through a `Job` and `AsyncDataStream`, against the same client in a pool of coroutines written by hand.

The service is a process of its own on loopback that answers each request after 50 ms. What is counted is the processor
time of the process that calls it, all threads together, for each call.

    python -m benchmarks.http_calls --json
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

from aiohttp import ClientSession, TCPConnector

from async_op import AsyncDataStream, AsyncFunction, Job, Runtime, Step

IN_FLIGHT = 800
ANSWER_SECONDS = 0.05
BODY = b'{"price": 19.99, "currency": "EUR"}'
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(BODY), BODY)


class Answering(asyncio.Protocol):
    """Answers each request of a connection, which comes in one piece, after a while."""

    def connection_made(self, transport: Any) -> None:
        """Keep the way back."""
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Answer later."""
        asyncio.get_running_loop().call_later(ANSWER_SECONDS, self._transport.write, ANSWER)


def serve(ready: Connection) -> None:
    """Run the service until its process is ended; it sends its port first."""

    async def run() -> None:
        server = await asyncio.get_running_loop().create_server(Answering, "127.0.0.1", 0, backlog=2 * IN_FLIGHT)
        ready.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(run())


@contextmanager
def service() -> Iterator[str]:
    """Run the service beside, and yield its address."""
    processes = multiprocessing.get_context("spawn")
    here, there = processes.Pipe()
    process = processes.Process(target=serve, args=(there,), daemon=True)
    process.start()
    try:
        yield f"http://127.0.0.1:{here.recv()}/price"
    finally:
        process.kill()
        process.join()


def new_session() -> ClientSession:
    """Return a client without a limit of its own."""
    return ClientSession(connector=TCPConnector(limit=0))


async def price_of(session: ClientSession, url: str, item: int) -> tuple[int, Any]:
    """Ask for the price of an item."""
    async with session.get(url, params={"item": item}) as response:
        return item, await response.json()


class Priced(AsyncFunction):
    """Asks for the price of each element, as in the how-to."""

    def __init__(self, url: str) -> None:
        self.url = url

    async def open(self, runtime: Runtime) -> None:
        self.session = new_session()

    async def close(self) -> None:
        await self.session.close()

    async def async_invoke(self, value: int, ctx: Any) -> list[Any]:
        return [await price_of(self.session, self.url, value)]


def through_pool(url: str, calls: int) -> int:
    """Make the calls in a pool written by hand; returns the number of answers."""
    items = iter(range(calls))

    async def work(session: ClientSession) -> list[Any]:
        return [await price_of(session, url, item) for item in items]

    async def run() -> int:
        async with new_session() as session:
            return sum(map(len, await asyncio.gather(*(work(session) for _ in range(IN_FLIGHT)))))

    return asyncio.run(run())


def through_stream(url: str, calls: int) -> int:
    """Make the calls through a stream."""

    async def run() -> int:
        count = 0
        async for _ in AsyncDataStream.unordered_wait(range(calls), Priced(url), capacity=IN_FLIGHT):
            count += 1
        return count

    return asyncio.run(run())


def through_job(url: str, calls: int, run: Callable[[Job], None] = Job.run_sync) -> int:
    """Make the calls through a job with snapshots, as a program does."""
    answers: list[Any] = []
    with tempfile.TemporaryDirectory() as folder:
        step = Step(Priced(url), "price", capacity=IN_FLIGHT)
        sink: Callable[[list[Any], int], None] = lambda outputs, _: answers.extend(outputs)  # noqa: E731
        run(Job(range(calls), step, sink, snapshots=folder, job_id="benchmark"))
    return len(answers)


def through_job_in_a_loop(url: str, calls: int) -> int:
    """Make the calls through a job in an event loop that others may use, too."""
    return through_job(url, calls, lambda job: asyncio.run(job.run()))


def microseconds(way: Callable[[str, int], int], url: str, calls: int) -> float:
    """Return the processor time of a call."""
    gc.collect()  # or this way pays for the garbage of the one before
    started = time.process_time()
    assert way(url, calls) == calls, "each call has an answer"
    return (time.process_time() - started) / calls * 1e6


WAYS: dict[str, Callable[[str, int], int]] = {
    "pool": through_pool,
    "stream": through_stream,
    "job": through_job,
    "job in a loop of others": through_job_in_a_loop,
}
WANTED = {"job": 1.10, "job in a loop of others": 1.10}


def measure(repeats: int, calls: int) -> list[dict[str, Any]]:
    """Run all ways in turn; the ratio of a way is its processor time against the pool's."""
    found: dict[str, float] = dict.fromkeys(WAYS, float("inf"))
    with service() as url:
        for _ in range(repeats):
            for name, way in WAYS.items():
                found[name] = min(found[name], microseconds(way, url, calls))
    return [
        {"way": name, "microseconds": round(one, 1), "ratio": round(one / found["pool"], 3), "wanted": WANTED.get(name)}
        for name, one in found.items()
    ]


def main() -> None:
    """Measure all ways in turn and print them."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.http_calls", description=__doc__)
    parser.add_argument("--json", action="store_true", help="machine-readable")
    parser.add_argument("--repeats", type=int, default=7, help="runs of each way (default: 7)")
    parser.add_argument("--calls", type=int, default=10_000, help="calls of each run (default: 10,000)")
    arguments = parser.parse_args()
    rows = measure(arguments.repeats, arguments.calls)
    if arguments.json:
        json.dump({"in_flight": IN_FLIGHT, "results": rows}, sys.stdout, indent=2)
        return
    for row in rows:
        print("{way:24} {microseconds:8.1f} µs a call, {ratio:5.3f} of the pool".format(**row))


if __name__ == "__main__":
    main()
