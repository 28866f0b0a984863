"""A service that slows down, fails and recovers, called by an operator without limits and by one with all of them.

The service is a real HTTP server on loopback: it answers in 20 ms as long as it has at most 40 requests at once, and
refuses more; it takes 150 ms while it is slow, and fails while it is down. What is counted are its requests.

    python -m benchmarks.failing_service --json
    python -m benchmarks.failing_service --plot docs/resilience.svg    draws the figure of the documentation
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from aiohttp import ClientSession, TCPConnector, web

from async_op import (
    AdaptiveConcurrency,
    AsyncFunction,
    AsyncWaitOperator,
    Cache,
    CircuitBreaker,
    ExponentialBackoffRetry,
    InvocationContext,
    RateLimit,
    Resilience,
    SingleFlight,
)

PHASES = ("well", "slow", "down", "well again")
AT_ONCE_MAX = 40
ITEMS = 1500
CAPACITY = 200
SAMPLE_SECONDS = 0.1
SMOOTHED = 5  # samples that a point of the figure stands for
PHASES_NAMED = ("answers in 20 ms", "answers in 150 ms", "down: only errors", "answers in 20 ms")
PANELS = {
    "requests": "Requests that the service got",
    "bad": "of them refused or failed",
    "outputs": "Outputs of the operator (from the cache, too)",
}

CAREFUL = Resilience(
    cache=Cache(key=lambda item: item, max_entries=500, ttl_seconds=1.0),
    single_flight=SingleFlight(lambda item: item),
    concurrency=AdaptiveConcurrency(minimum=2, slow_seconds=0.1),
    circuit_breaker=CircuitBreaker(window=20, failure_rate=0.5, open_seconds=0.5, probes=3),
    rate_limit=RateLimit(800),
)


class ServiceDown(Exception):
    """The service answered with an error."""


class Fetch(AsyncFunction):
    """Asks the service for an item."""

    def __init__(self, url: str) -> None:
        self._url = url

    async def open(self, runtime: Any) -> None:
        self._session = ClientSession(connector=TCPConnector(limit=0))

    async def async_invoke(self, value: int, ctx: InvocationContext) -> list[Any]:
        async with self._session.get(f"{self._url}/{value}") as reply:
            if reply.status != 200:
                raise ServiceDown(reply.status)
            return [await reply.text()]

    async def close(self) -> None:
        await self._session.close()


@dataclass
class Service:
    """The server; `phase` says how it is."""

    phase: str = "well"
    running: int = 0
    answers: Counter[tuple[str, int]] = field(default_factory=Counter)

    async def answer(self, request: web.Request) -> web.Response:
        """Answer one request."""
        self.running += 1
        try:
            status = 503 if self.phase == "down" or self.running > AT_ONCE_MAX else 200
            await asyncio.sleep(0.005 if status == 503 else 0.15 if self.phase == "slow" else 0.02)
        finally:
            self.running -= 1
        self.answers[self.phase, status] += 1
        return web.Response(text=request.match_info["item"], status=status)

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[str]:
        """Run on a free port; yields the address."""
        app = web.Application()
        app.router.add_get("/{item}", self.answer)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        try:
            host, port = runner.addresses[0][:2]
            yield f"http://{host}:{port}"
        finally:
            await runner.cleanup()


async def run(resilience: Resilience | None, seconds: float) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Run through all phases; returns what was counted, and a sample of it every tenth of a second."""
    service, draw = Service(), random.Random(1)  # noqa: S311 - the same items in each run
    left: list[Any] = []
    async with service.serve() as url:
        operator = AsyncWaitOperator(
            Fetch(url),
            left.append,
            capacity=CAPACITY,
            timeout=5.0,
            retry=ExponentialBackoffRetry(6, 0.05, 1.0, retry_on=ServiceDown),
            on_error="skip",
            resilience=resilience,
        )
        await operator.open()
        feeder = asyncio.create_task(feed(operator, draw))
        samples = await sample(operator, service, left, seconds)
        feeder.cancel()
        await asyncio.gather(feeder, return_exceptions=True)
        skipped = operator.statistics().skipped
        await operator.close()
    counted = {phase: {"good": service.answers[phase, 200], "bad": service.answers[phase, 503]} for phase in PHASES}
    return {"phases": counted, "outputs": len(left), "skipped": skipped}, samples


async def feed(operator: AsyncWaitOperator, draw: random.Random) -> None:
    """Feed items as fast as they are taken; some are asked for much more often than others."""
    while True:
        await operator.process(int(ITEMS * draw.random() ** 3))


async def sample(
    operator: AsyncWaitOperator, service: Service, left: list[Any], seconds: float
) -> list[dict[str, Any]]:
    """Go through the phases, and note what has been counted so far every tenth of a second."""
    samples: list[dict[str, Any]] = []
    started = time.monotonic()
    while (now := time.monotonic() - started) < len(PHASES) * seconds:
        service.phase = PHASES[int(now / seconds)]
        resilience = operator.statistics().resilience
        samples.append(
            {
                "time": now,
                "bad": sum(count for (_, status), count in service.answers.items() if status != 200),
                "requests": service.answers.total(),
                "outputs": len(left),
                "limit": resilience and resilience.concurrency_limit,
                "running": service.running,
                "circuit": resilience and resilience.circuit,
                "spared": resilience and resilience.cache_hits + resilience.shared,
            }
        )
        await asyncio.sleep(SAMPLE_SECONDS)
    return samples


def plot(path: str, seconds: float, bare: list[dict[str, Any]], careful: list[dict[str, Any]]) -> None:
    """Draw what the service answered and what the operator put out, of both runs."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "keygroups", "font.size": 9})
    from matplotlib import pyplot as plt

    # A reader may have a dark page.
    figure, axes = plt.subplots(3, 1, sharex=True, figsize=(8, 6.6), layout="constrained", facecolor="white")
    for axis, (what, title) in zip(axes, PANELS.items(), strict=True):
        for run_name, samples, colour in (("without limits", bare, "#c44e52"), ("with limits", careful, "#4c72b0")):
            axis.plot(*rates(samples, what), color=colour, label=run_name, linewidth=1.5)
        axis.set_title(title, loc="left")
        axis.set_ylabel("per second")
        axis.set(xlim=(0, len(PHASES) * seconds), ylim=(0, None))
        axis.spines[["top", "right"]].set_visible(False)
        for start, end in not_closed(careful):
            axis.axvspan(start, end, color="#e8e8e8", linewidth=0, label="circuit breaker open or half open", zorder=0)
        for number in range(1, len(PHASES)):
            axis.axvline(number * seconds, color="#888888", linewidth=0.8, linestyle=":")
    names = axes[0].secondary_xaxis("top")
    names.set_xticks([(number + 0.5) * seconds for number in range(len(PHASES))], PHASES_NAMED)
    names.tick_params(length=0, pad=4)
    names.spines["top"].set_visible(False)
    labelled = dict(zip(*reversed(axes[0].get_legend_handles_labels()), strict=True))
    figure.legend(labelled.values(), labelled, loc="outside lower center", ncols=3, frameon=False)
    axes[-1].set_xlabel("seconds")
    figure.savefig(path, metadata={"Date": None})


def not_closed(samples: list[dict[str, Any]]) -> list[tuple[float, float]]:
    """Return the times between which the circuit breaker lets nothing through, or probes only."""
    spans: list[tuple[float, float]] = []
    for before, after in pairwise(samples):
        if before["circuit"] == "closed":
            continue
        if spans and spans[-1][1] == before["time"]:
            spans[-1] = spans[-1][0], after["time"]
        else:
            spans.append((before["time"], after["time"]))
    return spans


def rates(samples: list[dict[str, Any]], what: str) -> tuple[list[float], list[float]]:
    """Return what was added per second, over the half second around each sample."""
    around = zip(samples, samples[SMOOTHED:], strict=False)
    ends = [(before["time"], after["time"], after[what] - before[what]) for before, after in around]
    return [(start + end) / 2 for start, end, _ in ends], [added / (end - start) for start, end, added in ends]


def main() -> None:
    """Run both, print what was counted, and draw it if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--seconds", type=float, default=3.0, help="of each phase (default: 3)")
    parser.add_argument("--repeats", type=int, default=1, help="ignored: what is counted are requests")
    parser.add_argument("--plot", metavar="FILE", help="draw the runs as SVG")
    arguments = parser.parse_args()
    bare, bare_samples = asyncio.run(run(None, arguments.seconds))
    careful, careful_samples = asyncio.run(run(CAREFUL, arguments.seconds))
    if arguments.plot:
        plot(arguments.plot, arguments.seconds, bare_samples, careful_samples)
    if arguments.json:
        print(json.dumps({"bare": bare, "careful": careful}, indent=2))
        return
    for name, one in (("without limits", bare), ("with limits", careful)):
        print(f"{name}: {one['outputs']} outputs, {one['skipped']} elements given up")
        for phase, counts in one["phases"].items():
            print(f"    {phase:12} {counts['good']:6} good and {counts['bad']:6} bad answers")


if __name__ == "__main__":
    main()
