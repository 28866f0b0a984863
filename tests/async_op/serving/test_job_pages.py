"""What a running job answers: probes, metrics, progress."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from socket import socket
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from async_op import AddressUnavailable, Job, RateLimit, Resilience, RestartPolicy, Step
from tests.async_op.job.kit import Epochs, Gated, Log, new_job, same
from tests.async_op.kit import eventually
from tests.async_op.serving.test_http import asked, status


@asynccontextmanager
async def served(job: Job, end: str = "stop") -> AsyncIterator[str]:
    """Run a job with a server; yields its address."""
    with socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    task = asyncio.create_task(job.run(serve=address))
    try:
        await eventually(lambda: job.progress().state != "new" or task.done())
        if task.done():
            task.result()  # an error, unless it has ended already
        yield address
        if end == "stop":
            if not task.done():
                job.stop(drain=False)
            await task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def get(address: str, path: str) -> tuple[int, str]:
    answer = await asked(address, f"GET {path} HTTP/1.1\r\n\r\n".encode())
    return status(answer), answer.partition(b"\r\n\r\n")[2].decode()


async def test_a_job_that_runs_is_alive_and_ready_and_tells_its_progress() -> None:
    sink, gated = Epochs(), Gated()
    steps = [Step(same, "plain", resilience=Resilience(rate_limit=RateLimit(1000))), Step(gated, "gated")]
    job = new_job(Log([1, 2]), steps, sink)
    async with served(job) as address:
        await gated.arrived.wait()
        await eventually(lambda: job.progress().in_flight.get("gated") == 2)
        await eventually(lambda: job.progress().oldest_call_seconds > 0)
        assert await get(address, "/healthz") == (200, "ok\n")
        assert await get(address, "/readyz") == (200, "running\n")
        code, text = await get(address, "/progress")
        progress: dict[str, Any] = json.loads(text)
        assert (code, progress["records"], progress["in_flight"]["gated"]) == (200, 2, 2)
        assert progress["limits"].keys() == {"plain"}
        code, text = await get(address, "/metrics")
        samples = {one.name: one for family in text_string_to_metric_families(text) for one in family.samples}
        assert samples["keygroups_job_records_total"].labels == {"job": "job"}
        assert samples["keygroups_job_records_total"].value == 2
        assert (await get(address, "/"))[1].startswith("<!doctype html>")


async def test_a_job_that_opens_or_restarts_is_alive_and_not_ready() -> None:
    class Broken(Log):
        async def open(self) -> None:
            raise ValueError("broken")

    policy = RestartPolicy(initial_delay=1000.0, max_delay=1000.0)
    job = new_job(Broken([1]), same, Epochs(), restart=policy)
    async with served(job, end="cancel") as address:
        await eventually(lambda: job.progress().state == "restarting")
        assert await get(address, "/healthz") == (200, "ok\n")
        assert await get(address, "/readyz") == (503, "restarting\n")


async def test_after_the_run_no_request_is_answered() -> None:
    job = new_job([1], same, Epochs())
    async with served(job) as address:
        await eventually(lambda: job.progress().state == "ended")
    with pytest.raises(OSError, match="(?i)connect"):
        await get(address, "/healthz")


async def test_an_address_that_is_taken_stops_the_job_before_it_begins() -> None:
    async with served(new_job(Log([1]), same, Epochs())) as address:
        other = new_job([1], same, sink := Epochs(), restart=RestartPolicy())
        with pytest.raises(AddressUnavailable, match="choose another port"):
            await other.run(serve=address)
        assert sink.values == []
