"""The end of a loop on which a simulation ran."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from contextlib import suppress
from typing import TypeVar

from async_op.testing import Stalled, VirtualLoop

_Result = TypeVar("_Result")

_ROUNDS_MAX = 10


def run_alone(loop: VirtualLoop, work: Awaitable[_Result]) -> _Result:
    """Run work on a loop that nothing else needs, and return its result."""
    try:
        return loop.run_until_complete(work)
    finally:
        abandon(loop)


def abandon(loop: VirtualLoop) -> None:
    """End the tasks that are left, and close the loop: a failed run says why it failed and disturbs no later test."""
    loop.set_exception_handler(lambda *_: None)
    for _ in range(_ROUNDS_MAX):  # what ends may start something
        left = asyncio.all_tasks(loop)
        if not left:
            break
        for task in left:
            task.cancel()
        with suppress(Stalled):
            loop.run_until_complete(asyncio.wait(left))
    loop.close()
    assert not left, f"{len(left)} tasks do not end"
