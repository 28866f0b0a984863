"""Children of a simulated job: they live on the loop of their parent, and what they say takes a while."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from async_op.job import job
from async_op.job.processes import launch as launching
from async_op.job.processes import remote_channels
from async_op.job.processes.child_loop import ChildLoop, ChildSpec
from async_op.job.processes.messages import Receiver
from tests.async_op.job.simulation.world import Fault

FLUSH_SECONDS = 0.05
"""So long that cuts often find elements that have not been sent."""


class Pipe:
    """One direction of a link: frames come after some time, in their order. It ends, and what was sent still comes."""

    def __init__(self, draw: random.Random, moved: Callable[[], None]) -> None:
        self._draw = draw
        self._moved = moved
        self._frames = deque[tuple[int, bytes] | None]()
        self._is_ended = self._is_held = False
        self.receiver: Receiver | None = None

    def send(self, kind: int, payload: bytes) -> None:
        if not (self._is_ended or self._is_held):
            self._add((kind, payload))

    def close(self) -> None:
        if not self._is_ended:
            self._is_ended = True
            self._add(None)

    def hold(self) -> None:
        """Let nothing come any more but the end."""
        self._is_held = True
        while self._frames and self._frames[0] is not None:
            self._frames.popleft()

    def drop(self) -> None:
        """Let nothing come any more."""
        self._is_ended = True
        self._frames.clear()
        self.receiver = None

    def _add(self, frame: tuple[int, bytes] | None) -> None:
        self._frames.append(frame)
        delay = self._draw.choice([0.0, 0.0, 0.01, 0.2]) * self._draw.random()
        asyncio.get_running_loop().call_later(delay, self._come)

    def _come(self) -> None:
        if not self._frames:
            return
        frame, receiver = self._frames.popleft(), self.receiver
        if receiver is None:
            return
        if frame is None:
            receiver.lost()
        else:
            receiver.received(*frame)
            self._moved()


class SimulatedChild:
    """A child that may be killed or stopped after any frame."""

    pid = 1

    def __init__(self, spec: ChildSpec, receiver: Receiver, draw: random.Random, dies_at: int | None) -> None:
        self._left = dies_at
        self._draw = draw
        self.link = Pipe(draw, self._moved)
        self._answers = Pipe(draw, self._moved)
        self._answers.receiver = receiver
        self._loop = ChildLoop(spec)
        self.link.receiver = self._loop
        self._status = "with status 0"
        self._living = asyncio.ensure_future(self._live())

    async def _live(self) -> None:
        try:
            await self._loop.serve(self._answers)
        finally:
            self._answers.close()
            if self._loop._chain is not None:
                await self._loop._chain.close()

    def _moved(self) -> None:
        if self._left is not None:
            self._left -= 1
            if self._left == 0:
                self._draw.choice([self.kill, self.stop])()

    def stop(self) -> None:
        """Take and say nothing any more, and do nothing, until it is killed."""
        self.link.hold()
        self._answers.hold()
        if self._loop._chain is not None:
            self._loop._chain.stop()

    def kill(self) -> None:
        """Let nothing come in or leave any more."""
        self._status = "by SIGKILL"
        self.link.drop()
        self._answers.close()
        if self._loop._chain is not None:
            self._loop._chain.stop()
        self._living.cancel()

    async def exit_status(self) -> str:
        await asyncio.wait([self._living])
        return self._status


@contextmanager
def simulated(draw: random.Random, dies: Callable[[], int | None]) -> Iterator[None]:
    """Have jobs start such children; `dies` says after how many frames the next one dies, and 0 that it never lives."""

    async def launch(spec: ChildSpec, receiver: Receiver) -> Any:
        lifetime = dies()
        await asyncio.sleep(draw.choice([0.0, 0.0, 0.5]) * draw.random())
        if lifetime == 0:
            raise Fault("no room for a process")
        return SimulatedChild(spec, receiver, draw, lifetime)

    with (
        mock.patch.object(launching, "launch", launch),
        mock.patch.object(remote_channels, "FLUSH_SECONDS", FLUSH_SECONDS),
    ):
        yield


def without_checks() -> Any:
    """Let jobs have functions that no pickle can hold, and snapshots in memory: all happens in this process."""
    return mock.patch.object(job, "check_spread", return_value=None)
