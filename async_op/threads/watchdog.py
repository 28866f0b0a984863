"""Notices a call that blocks the event loop, and warns of the function that made it."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import traceback
import warnings
from collections.abc import Callable
from types import CodeType, FrameType
from weakref import WeakKeyDictionary, ref

from async_op.durations import OWN_PACKAGES
from async_op.errors import BlocksEventLoop
from async_op.threads.blocking_work import beside

_log = logging.getLogger(__name__)

_LOOK_SECONDS = 0.5
"""Time between two looks. A call is named at the second look that finds it, so it has blocked for over a second."""

_TURN_SECONDS = 0.05
"""How long the turn of a loop lasts that blocking calls have kept: a greeting or a cut takes several messages."""

_FRAMES_MAX = 20

_IMPORTS = {"importlib", "importlib._bootstrap", "importlib._bootstrap_external"}

_found: dict[CodeType, BlocksEventLoop] = {}
"""The functions that were warned of. For the whole process, because Spark runs many loops in one worker."""

_listeners: list[Callable[[BlocksEventLoop], object]] = []


def blocking_functions() -> tuple[BlocksEventLoop, ...]:
    """Return the functions that have blocked an event loop of this process."""
    return tuple(_found.values())


def on_blocking(listener: Callable[[BlocksEventLoop], object]) -> None:
    """Have a listener called, on the watchdog's thread, while a function that was not found before blocks its loop."""
    _listeners.append(listener)


def warn_of(blocking: BlocksEventLoop) -> None:
    """Issue a warning as if by the line that blocks, whichever process that has run in."""
    try:
        warnings.warn_explicit(blocking, None, blocking.path, blocking.line, blocking.module)
    except BlocksEventLoop as error:
        # Where warnings are errors, this one has no caller who could be told, as in any thread. pytest fails the test.
        told = type(error), error, error.__traceback__, threading.current_thread()
        threading.excepthook(threading.ExceptHookArgs(told))


class Turn:
    """Says whether calls that block have kept the event loop for too long.

    Without it, a pool would make hundreds of calls that block in one turn of the loop, and a host that shows no sign of
    life meanwhile would be replaced.

    Attributes
    ----------
    is_due : bool
        Whether a task that is about to make a call must let the loop have its turn first.
    """

    __slots__ = ("is_due",)

    def __init__(self) -> None:
        self.is_due = False

    def end(self) -> None:
        """Let calls begin again."""
        self.is_due = False

    async def given(self) -> None:
        """Let the loop have its turn."""
        while self.is_due:  # noqa: ASYNC110 - an event would have to be set from another thread
            await asyncio.sleep(_TURN_SECONDS)


class _Watchdog:
    """Asks one event loop again and again for a sign of life, on a thread that ends with the last user.

    Attributes
    ----------
    turn : Turn
        Due from the second look that finds a function until the loop answers.
    users : int
        How many operators on the loop are open.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = ref(loop)  # a loop that is forgotten with an open operator must not live on
        self._ended = threading.Event()
        self._has_answered = True
        self.turn = Turn()
        self._suspect: CodeType | None = None
        self._thread_id = threading.get_ident()
        self._depth = _depth_of_task()  # the very first call may block before the loop can answer
        self.users = 0

    def start(self) -> None:
        """Begin to watch."""
        threading.Thread(target=self._watch, name="keygroups watchdog", daemon=True).start()

    def end(self) -> None:
        """Let the thread end; does not wait for it, because a handler of the log may take its time."""
        self._ended.set()

    def _watch(self) -> None:
        while not self._ended.wait(_LOOK_SECONDS) and (loop := self._loop()) is not None:
            if self._has_answered or not loop.is_running():
                self._suspect = None
            else:
                self._look()
            if self._has_answered:
                self._has_answered = False
                try:
                    loop.call_soon_threadsafe(self._answer)
                except RuntimeError:
                    return  # the loop has been closed
            del loop

    def _answer(self) -> None:
        self._thread_id, self._depth = threading.get_ident(), len(_stack(sys._getframe()))
        self._has_answered = True
        if self.turn.is_due:
            # Not yet over: behind this answer, calls may stand in the queue before the tasks that need the turn.
            asyncio.get_running_loop().call_soon(self.turn.end)

    def _look(self) -> None:
        """Name what the loop runs, if the look before found the same: once may only mean that the machine is busy."""
        frame = sys._current_frames().get(self._thread_id)
        if frame is None:
            return
        # The loop calls everything from the same depth. What lies further out, such as the program, waits for the loop.
        called = _stack(frame)[self._depth - 1 :]
        function = function_of(called)
        suspect, self._suspect = self._suspect, function and function.f_code
        if suspect is not None and not self._has_answered:
            self.turn.is_due = True  # until the answer, even if later looks find the loop between two calls
        if function is not None and suspect is function.f_code and suspect not in _found:
            _found[suspect] = _blocking(function)
            _tell(_found[suspect], frame, len(called))


def _stack(frame: FrameType) -> list[FrameType]:
    """Return the frames of a thread, outermost first."""
    return [found for found, _ in traceback.walk_stack(frame)][::-1]


def _depth_of_task() -> int:
    """Return how deep the running task lies in its thread's stack; a task that is no coroutine counts as innermost."""
    # Without this frame, which would refer to itself through `stack` and keep the caller's frames until a collection.
    stack, task = _stack(sys._getframe(1)), asyncio.current_task()
    outermost = getattr(task and task.get_coro(), "cr_frame", None)
    return stack.index(outermost) + 1 if outermost in stack else len(stack)


def function_of(called: list[FrameType]) -> FrameType | None:
    """Return the frame of the user's function: the outermost that is not ours, seen from the innermost.

    The innermost one itself may be another function of some library at each look.
    """
    function = None
    for frame in reversed(called):
        package = frame.f_globals.get("__name__", "").partition(".")[0]
        if package in OWN_PACKAGES:
            break
        if package != "asyncio":
            function = frame
    # An import that this library makes late is slow on a busy machine, and no call of the user.
    return None if function is not None and function.f_globals.get("__name__") in _IMPORTS else function


def _blocking(function: FrameType) -> BlocksEventLoop:
    code, module = function.f_code, function.f_globals.get("__name__", "?")
    return BlocksEventLoop(module, code.co_qualname, code.co_filename, function.f_lineno)


def _tell(blocking: BlocksEventLoop, innermost: FrameType, depth: int) -> None:
    stack = "".join(traceback.format_stack(innermost, min(depth, _FRAMES_MAX))).rstrip()
    _log.info("%s.%s blocks its event loop here:\n%s", blocking.module, blocking.function, stack)
    warn_of(blocking)
    for listener in tuple(_listeners):
        listener(blocking)


class Watch:
    """One operator's use of the watchdog of its event loop. Only the loop's thread may call `end`.

    A loop on which everything happens in virtual time has no watchdog: its time stands still while a call blocks.

    Attributes
    ----------
    turn : Turn
        Says when calls have to let the loop have its turn.
    """

    __slots__ = ("_loop", "_watchdog", "turn")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._watchdog: _Watchdog | None = None
        self.turn = Turn()
        if beside(loop).is_at_once:
            return
        with _lock:
            found = _watchdogs.get(loop)
            if found is None:
                found = _watchdogs[loop] = _Watchdog(loop)
                found.start()
            found.users += 1
        self._watchdog, self.turn = found, found.turn

    def end(self) -> None:
        """End the use, and with the last one the watchdog; may be called again."""
        watchdog, self._watchdog = self._watchdog, None
        if watchdog is None:
            return
        with _lock:
            watchdog.users -= 1
            if not watchdog.users:
                del _watchdogs[self._loop]
                watchdog.end()


_watchdogs: WeakKeyDictionary[asyncio.AbstractEventLoop, _Watchdog] = WeakKeyDictionary()
_lock = threading.Lock()
