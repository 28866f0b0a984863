"""What a job answers: whether it is alive and ready, its metrics, its progress, and a page that shows it."""

from __future__ import annotations

import json
import math
from collections.abc import AsyncIterator, Mapping
from dataclasses import fields, is_dataclass
from http import HTTPStatus
from importlib.resources import files
from typing import Any

from async_op.metrics.exposition import CONTENT_TYPE, exposition
from async_op.metrics.watch import WatchedJob, Watches
from async_op.serving.http import Pages, Response, serving
from async_op.threads.own_thread import on_own_thread
from keygroups.context_managers import asynccontextmanager

_READY = frozenset({"running", "rescaling", "draining", "stopping"})
"""The states in which a job has opened its source, steps and sink."""


@asynccontextmanager
async def serving_job(serve: str, job: WatchedJob) -> AsyncIterator[str]:
    """Response requests about a job while the block runs; yields the address.

    Parameters
    ----------
    serve : str
        Host and port.
    job : Job
        The job.

    Raises
    ------
    ConfigError, AddressUnavailable
        As for `serving`.
    """
    page = await on_own_thread(files(__package__ or "").joinpath("page.html").read_text, "utf-8")
    watches = Watches()
    watches.add_job(job)
    try:
        async with serving(serve, _pages(watches, job, page)) as address:
            yield address
    finally:
        watches.close()


def _pages(watches: Watches, job: WatchedJob, page: str) -> Pages:
    def ready() -> Response:
        state = job.progress().state
        return Response(f"{state}\n", status=HTTPStatus.OK if state in _READY else HTTPStatus.SERVICE_UNAVAILABLE)

    return {
        "/": lambda: Response(page, "text/html; charset=utf-8"),
        "/healthz": lambda: Response("ok\n"),  # that the event loop answers is what is asked for
        "/readyz": ready,
        "/metrics": lambda: Response(exposition(watches.families()), CONTENT_TYPE),
        "/progress": lambda: Response(json.dumps(as_json(job.progress())), "application/json"),
    }


def as_json(value: Any) -> Any:
    """Return what JSON can hold in place of a progress.

    Examples
    --------
    >>> as_json({"left": (1.5, float("inf"))})
    {'left': [1.5, None]}
    """
    if is_dataclass(value):
        return {field.name: as_json(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): as_json(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(one) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
