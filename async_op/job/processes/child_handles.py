"""The child processes of a run, as the parent sees them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, Protocol

from async_op.cancellation import to_the_end
from async_op.hosting.lease import OPEN_SECONDS, PATIENCE_SECONDS, SILENT_SECONDS
from async_op.in_flight.waiters import Waiters
from async_op.job.errors import ChildLost
from async_op.job.processes import messages
from async_op.job.processes.child_loop import ChildSpec, ChildStatus, Failure
from async_op.job.progress import ChildProgress

_log = logging.getLogger(__package__)

END_SECONDS = 10.0
"""How long a child that was told to end may take, until it is killed."""

LOOK_SECONDS = 1.0
"""How often each child is asked for a sign of life."""

OUTCOME_SECONDS = 5.0
"""How long the parent waits for the exit status of a child whose connection has ended."""


class Launched(Protocol):
    """A child that was started."""

    @property
    def link(self) -> messages.Link:
        """The connection to it."""
        ...

    @property
    def pid(self) -> int:
        """Its process."""
        ...

    async def exit_status(self) -> str:
        """Return how it has ended, once it has."""
        ...

    def kill(self) -> None:
        """End it at once."""
        ...


Launch = Callable[[ChildSpec, messages.Receiver], Awaitable[Launched]]


class Passing(Protocol):
    """What is done with what comes from children."""

    def passed(self, child: Child, kind: int, payload: bytes) -> None:
        """Take something about a channel."""
        ...

    def marked(self, child: Child) -> None:
        """Note that a child has made its cut."""
        ...

    def stands(self) -> None:
        """Note that a child has reported how it stands."""
        ...

    def failed(self, error: BaseException) -> None:
        """Note that something in a child has failed."""
        ...


class Child:
    """One child; a `Receiver`. Only the thread of the event loop may call it.

    Attributes
    ----------
    number : int
        Which one it is, counted from 1.
    own : range
        Its subtasks of each step.
    status : ChildStatus
        How it stood when it was heard of last.
    may_be_silent : bool
        Whether functions are being opened or closed in it, which may block its event loop.
    """

    def __init__(self, number: int, steps: Sequence[str]) -> None:
        self.number = number
        self.own = range(0)
        self.status = ChildStatus()
        self.may_be_silent = True
        self._silent_seconds = 0.0
        """Only time in which the parent listened: its own event loop may be blocked, too."""
        self._silent_for = ""
        self._sign_of_life: asyncio.Future[Any] | None = None
        self.passing: Passing | None = None
        self._steps = ", ".join(steps)
        self._starting: asyncio.Task[None] | None = None
        self._launched: Launched | None = None
        self._replies: dict[int, asyncio.Future[Any]] = {}
        self._requests = 0
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.gone: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """How it has ended, once it has."""
        self.is_ending = False
        self.failure: BaseException | None = None
        self._outcome: asyncio.Task[None] | None = None
        self.heard = Waiters()

    async def start(self, launch: Launch, spec: ChildSpec) -> None:
        """Start the process, and wait until it serves."""
        self._starting = asyncio.ensure_future(self._launch(launch, spec))
        await to_the_end(self._starting)
        await self.heard.wait_until(self._ready.done)

    async def _launch(self, launch: Launch, spec: ChildSpec) -> None:
        self._launched = await launch(replace(spec, number=self.number), self)

    @property
    def pid(self) -> int:
        """Its process; 0 before it has one."""
        return 0 if self._launched is None else self._launched.pid

    @property
    def link(self) -> messages.Link:
        """The connection to it."""
        assert self._launched is not None, "the child was started"
        return self._launched.link

    def check(self) -> None:
        """Raise what has ended it."""
        if self.failure is not None:
            raise self.failure

    def ask(self, name: str, *arguments: Any) -> asyncio.Future[Any]:
        """Ask for something; the future gets what it returns or raises."""
        reply: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        reply.add_done_callback(_retrieve)
        if self.failure is not None:
            reply.set_exception(self.failure)
            return reply
        self._requests += 1
        self._replies[self._requests] = reply
        self.link.send(messages.REQUEST, messages.dumped((self._requests, name, arguments)))
        return reply

    def look(self) -> None:
        """Ask for a sign of life; a child that has shown none for long is told of, and then killed.

        The parent calls this every `LOOK_SECONDS`. Without it, a process that is stopped, or a function that blocks the
        event loop, would hold up all cuts for ever, and the end of the job as well.
        """
        if self._launched is None or self.failure is not None:
            return
        patience = OPEN_SECONDS if self.may_be_silent else PATIENCE_SECONDS
        before, self._silent_seconds = self._silent_seconds, self._silent_seconds + LOOK_SECONDS
        if before < SILENT_SECONDS <= self._silent_seconds and not self.may_be_silent:
            _log.warning(
                "child %d of the job (process %d) has shown no sign of life for %.0f s: it is stopped, or a function "
                "blocks its event loop; after %.0f s it is killed",
                *(self.number, self.pid, self._silent_seconds, patience),
            )
        if self._silent_seconds >= patience:
            self._silent_for = f" after {self._silent_seconds:.0f} s without a sign of life"
            self._launched.kill()
        elif self._ready.done() and (self._sign_of_life is None or self._sign_of_life.done()):
            self._sign_of_life = self.ask("show_life")

    def received(self, kind: int, payload: bytes) -> None:
        """Take what the child has sent."""
        self._silent_seconds = 0.0
        if kind == messages.REPLY:
            self._take_reply(*messages.loaded(payload))
        elif kind == messages.REPORT:
            self._take_report(*messages.loaded(payload))
        elif self.passing is None:
            return
        elif kind == messages.MARK:
            self.status = messages.loaded(payload)
            self.passing.marked(self)
        else:
            self.passing.passed(self, kind, payload)

    def _take_reply(self, number: int, outcome: Any, failure: Failure | None) -> None:
        reply = self._replies.pop(number)
        if reply.done():
            return
        if failure is None:
            reply.set_result(outcome)
        else:
            reply.set_exception(failure.raised_in(self.number))

    def _take_report(self, name: str, what: Any) -> None:
        if name == "ready":
            self._ready.set_result(None)
            self.heard.wake()
        elif name == "failed":
            self._fail_with(what.raised_in(self.number))
        elif self.passing is not None:
            self.status = what
            self.passing.stands()

    def _fail_with(self, error: BaseException) -> None:
        if not self._ready.done():
            self._give_up(error)
        elif self.passing is not None:
            self.passing.failed(error)

    def lost(self) -> None:
        """Note that the child has ended, and find out how."""
        self._outcome = asyncio.ensure_future(self._note_outcome())

    async def _note_outcome(self) -> None:
        status = "with an unknown status"
        if self._launched is not None:
            try:
                async with asyncio.timeout(OUTCOME_SECONDS):
                    status = await self._launched.exit_status()
            except TimeoutError:
                self._launched.kill()  # it has closed its connection, and is of no use
        status += self._silent_for
        if not self.gone.done():
            self.gone.set_result(status)
        if not self.is_ending:
            _log.error("child %d of the job has ended %s", self.number, status)
        self._give_up(ChildLost(self.number, self.pid, status, self._steps, _range_text(self.own)))

    def _give_up(self, error: BaseException) -> None:
        self.failure = self.failure or error
        for reply in self._replies.values():
            if not reply.done():
                reply.set_exception(self.failure)
        self._replies.clear()
        self.heard.end(self.failure)
        if self.passing is not None and not self.is_ending:
            self.passing.failed(self.failure)

    async def end(self) -> None:
        """End the process, and wait until it has ended."""
        self.is_ending = True
        if self._starting is not None:
            await asyncio.wait([self._starting])  # another child may have failed meanwhile
        if self._launched is None:
            return
        if self.failure is None and self._ready.done():
            self.ask("end")
            await asyncio.wait([self.gone], timeout=END_SECONDS)
        if not self.gone.done():
            self._launched.kill()
            await self.gone
        self._launched.link.close()
        if self._outcome is not None:
            await self._outcome

    def progress(self) -> ChildProgress:
        """Return how it stood when it was heard of last; any thread may ask."""
        status = self.status
        return ChildProgress(
            number=self.number,
            pid=self.pid,
            subtasks=len(self.own),
            in_flight=sum(status.in_flight.values()),
            outputs=status.outputs,
            dead_letters=status.dead_letters,
            processor_seconds=status.processor_seconds,
        )


class Children:
    """All children of a run. Only the thread of the event loop may call it.

    Parameters
    ----------
    spec : ChildSpec
        What they are told, but for their numbers.
    launch : callable
        Starts one of them.
    may_pause : bool
        Whether a child may show no sign of life for as long as it likes, because a debugger holds it.

    Attributes
    ----------
    all : list of Child
        The children.
    """

    def __init__(self, spec: ChildSpec, launch: Launch, *, may_pause: bool) -> None:
        self._may_pause = may_pause
        self._spec = spec
        self._launch = launch
        self._is_started = False
        self.all = [Child(number, list(spec.steps)) for number in range(1, spec.count + 1)]

    async def start(self) -> None:
        """Start all of them, if that has not been done."""
        if not self._is_started:
            self._is_started = True
            await gathered(child.start(self._launch, self._spec) for child in self.all)

    async def ask(self, name: str, *arguments: Any) -> list[Any]:
        """Ask all for the same, and return what they answer."""
        return await gathered(child.ask(name, *arguments) for child in self.all)

    async def watch(self) -> None:
        """Look after all of them, for ever."""
        while not self._may_pause:
            await asyncio.sleep(LOOK_SECONDS)
            for child in self.all:
                child.look()

    async def end(self) -> None:
        """End all of them."""
        await asyncio.gather(*(child.end() for child in self.all))

    def progress(self) -> tuple[ChildProgress, ...]:
        """Return how they stand; any thread may ask."""
        return tuple(child.progress() for child in self.all)


async def gathered(work: Iterable[Awaitable[Any]]) -> list[Any]:
    """Return all results, or raise the first error as soon as it comes; the others are left to themselves."""
    return list(await asyncio.gather(*work))


def _retrieve(reply: asyncio.Future[Any]) -> None:
    if not reply.cancelled():
        reply.exception()  # perhaps the caller has gone


def _range_text(own: range) -> str:
    return f"{own.start} to {own.stop - 1}" if len(own) > 1 else ", ".join(map(str, own)) or "none"
