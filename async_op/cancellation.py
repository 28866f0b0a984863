"""Cancels tasks that may swallow a cancellation, as `asyncio.wait_for` of Python 3.11 does."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

_log = logging.getLogger(__name__)

_ATTEMPTS_MAX = 10
_WAIT_SECONDS = 0.5


async def cancel_all(tasks: Iterable[asyncio.Task[None]]) -> None:
    """Cancel tasks, repeatedly if needed, and wait until they have ended; gives up after some seconds."""
    running = set(tasks)
    for _ in range(_ATTEMPTS_MAX):
        if not running:
            return
        for task in running:
            task.cancel()
        _, running = await asyncio.wait(running, timeout=_WAIT_SECONDS)
    if running:
        _log.warning("%d calls ignore their cancellation and are left running", len(running))
