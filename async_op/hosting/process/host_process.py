"""A host as a process of its own: its instructions, its life, and its end, which comes within a bounded time."""

from __future__ import annotations

import asyncio
import faulthandler
import os
import pickle
import signal
import socket
import stat
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from io import TextIOWrapper
from types import FrameType
from typing import BinaryIO, NamedTuple, NoReturn

from async_op.hosting.diagnostics import note_blocking
from async_op.hosting.errors import HostUnreachable
from async_op.hosting.host import Host
from async_op.hosting.host_settings import HostSettings
from async_op.hosting.lease import CLOSE_SECONDS, OPEN_SECONDS
from async_op.hosting.messages import Address
from async_op.hosting.process import fork_server
from async_op.hosting.process.host_files import HostFiles, holder_of, leave, sweep
from async_op.hosting.wire.frames import BEAT_SECONDS
from async_op.hosting.wire.server import Server
from async_op.hosting.wire.socket_paths import bindable
from async_op.threads.garbage import rare_collections
from async_op.threads.loop_thread import new_event_loop
from async_op.threads.operator_process import end_process
from async_op.threads.watchdog import function_of, on_blocking
from keygroups.context_managers import contextmanager

_LOG = 2
"""The descriptor of the log: a function may put anything in the place of `sys.stderr`."""

LOG_BYTES_MAX = 64 * 2**20
"""A log that grows longer is emptied: a function that prints something in each call must not fill the disk."""

_LOCK_SECONDS = 2 * CLOSE_SECONDS + 5.0
"""How long a new host waits for the host that it replaces to end; then it kills it if it hangs or is stopped."""

STALL_SECONDS = 10.0
"""If something blocks the event loop for this long, the stacks of all threads are written to the log."""


_TOLD_SECONDS = 10.0
"""A host says that its function is still being opened after this time, and again whenever that time has doubled."""


class InOpen(NamedTuple):
    """Says that a function's `open` has not returned.

    Attributes
    ----------
    seconds : float
        For how long.
    at : str
        The line of the function that blocks the event loop, for a message; empty if it does not block.
    """

    seconds: float
    at: str


@dataclass(frozen=True, kw_only=True)
class Instructions:
    """What the process of a host is told when it starts.

    Attributes
    ----------
    place : HostFiles
        Where the host has its socket, lock and log.
    secret : bytes
        The secret of the run.
    factory : bytes
        The factory of the operator, as the driver pickled it.
    settings : HostSettings
        Which subtask the host is for, and what it is restored from.
    interface : str or None
        The address of this machine on which the host also listens on TCP; None for the Unix socket only.
    watched : int or None
        A file descriptor that becomes readable when the host must end: the pidfd of the process that it must not
        outlive.
    prepare : callable or None
        Called before the factory is unpickled; sets up what the user's function would find in a Python worker.
    exits : str
        The file that will have the exit status of the process; empty without one.
    given_up : str
        The host, as ``machine:process id``, that was silent for too long. If it has the place, it is killed.
    """

    place: HostFiles
    secret: bytes = field(repr=False)
    factory: bytes = field(repr=False)
    settings: HostSettings
    interface: str | None = None
    watched: int | None = None
    prepare: Callable[[], object] | None = None
    exits: str = ""
    given_up: str = ""

    def live(self, descriptors: Sequence[int], answer: BinaryIO, exits: str) -> None:
        """Run the host until it ends; the descriptors have what it watches, if it watches anything."""
        live(replace(self, watched=next(iter(descriptors), None), exits=exits), answer)


def live(instructions: Instructions, answer: BinaryIO) -> None:
    """Run a host until it ends, and end the process with it. The answer is its address, once its function is open.

    Raises
    ------
    HostUnreachable
        Another host holds the lock of this place.
    OSError
        The Unix socket cannot be opened.
    """
    place = instructions.place
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # the log is read while the function runs
    faulthandler.enable(file=_LOG)  # a segfault in a library of the function leaves its stack in the log
    held = _lock(place, instructions.given_up)
    # A process that the function forks must not keep the lock after this process has ended.
    os.register_at_fork(after_in_child=lambda: os.close(held))
    try:
        sweep(place.folder)
        place.socket.unlink(missing_ok=True)
        place.blocking.unlink(missing_ok=True)
        on_blocking(partial(note_blocking, place.blocking))
        with rare_collections(), asyncio.Runner(loop_factory=new_event_loop) as runner:
            runner.run(_live(instructions, answer))
    except BaseException:
        traceback.print_exc()  # before `clear`, which removes an empty log
        raise
    finally:
        place.clear()
        os.close(held)
        leave(place.folder)


def _lock(place: HostFiles, given_up: str) -> int:
    """Wait for the host that has the place to end, and kill it if it hangs, or at once if it was given up before."""
    until, pause = time.monotonic() + _LOCK_SECONDS, threading.Event()
    may_kill = True
    while (held := _try_lock(place)) is None:
        is_over = time.monotonic() > until
        is_given_up = given_up != "" and holder_of(place.lock) == given_up
        if may_kill and (is_given_up or (is_over and _is_hanging(place))):
            may_kill, until = False, time.monotonic() + _LOCK_SECONDS
            _kill_holder(place, "was silent for too long" if is_given_up else "did not end and was to be replaced")
        elif is_over:
            raise HostUnreachable(f"another host holds {place.lock}")
        pause.wait(0.02)
    os.ftruncate(held, 0)
    os.write(held, str(os.getpid()).encode())
    return held


def _is_hanging(place: HostFiles) -> bool:
    """Tell whether the host of a place lets a feeder connect, and does not greet it."""
    with socket.socket(socket.AF_UNIX) as asked:
        asked.settimeout(STALL_SECONDS)
        try:
            with bindable(place.socket) as path:
                asked.connect(path)
            return not asked.recv(1)
        except TimeoutError:
            return True
        except OSError:  # it does not listen: it has just begun, or ends
            return False


def _kill_holder(place: HostFiles, why: str) -> None:
    """Kill the host that holds the lock: a process that is stopped never ends by itself."""
    with suppress(OSError, ValueError):  # it has just ended, or has not said yet who it is
        holder = int(place.lock.read_text(encoding="ascii"))
        os.kill(holder, signal.SIGKILL)
        print(f"killed process {holder}, which {why}", file=sys.stderr)  # noqa: T201


def _try_lock(place: HostFiles) -> int | None:
    try:
        return place.try_lock()
    except FileNotFoundError:  # a host of another run has just swept the folder
        place.make_folder()
        return None


async def _live(instructions: Instructions, answer: BinaryIO) -> None:
    if instructions.prepare is not None:
        instructions.prepare()
    host = Host(pickle.loads(instructions.factory), instructions.settings)  # noqa: S301 - pickled by the driver
    server = Server(host, instructions.secret)
    address = await _listen(server, instructions)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, host.ended.set)
    if instructions.watched is not None:
        loop.add_reader(instructions.watched, host.ended.set)
    beating = loop.create_task(_beat(instructions.settings, host.opened))
    opening = loop.create_task(_open(host, instructions.settings))
    ending = loop.create_task(host.ended.wait())
    with answer:
        with _told_of_open(answer):
            await asyncio.wait({opening, ending}, return_when=asyncio.FIRST_COMPLETED)
        if not host.ended.is_set():
            _answer(answer, address, host)
    await ending
    server.close()
    opening.cancel()
    beating.cancel()
    signal.setitimer(signal.ITIMER_REAL, 2 * CLOSE_SECONDS)
    # Of what blocks the loop only: a close that merely takes its time is given up without a trace.
    faulthandler.dump_traceback_later(1.5 * CLOSE_SECONDS, file=_LOG)
    with suppress(TimeoutError):
        await asyncio.wait_for(host.close(), CLOSE_SECONDS)
    _exit(instructions.place)


async def _open(host: Host, settings: HostSettings) -> None:
    await host.open()
    _put_off_alarm(settings, host.opened)  # in the same step, so before a call could block the loop


def _answer(answer: BinaryIO, address: Address, host: Host) -> None:
    try:
        fork_server.say(answer, address)
    except OSError as error:  # no task is left that could feed this host
        print(f"the task that has started this host has ended: {error!r}", file=sys.stderr)  # noqa: T201
        host.ended.set()


@contextmanager
def _told_of_open(answer: BinaryIO) -> Iterator[None]:
    """Say again and again, from another thread, what the function's `open` does: it may block the event loop."""
    opened = threading.Event()
    telling = threading.Thread(
        target=_tell_of_open, args=(answer, opened, threading.get_ident()), name="keygroups open", daemon=True
    )
    telling.start()
    try:
        yield
    finally:
        opened.set()
        telling.join()


def _tell_of_open(answer: BinaryIO, opened: threading.Event, loop_thread: int) -> None:
    began, pause = time.monotonic(), _TOLD_SECONDS
    while not opened.wait(pause):
        pause *= 2
        with suppress(OSError):  # the process that started this one has ended, which the host is about to notice
            fork_server.say(answer, InOpen(time.monotonic() - began, _at(sys._current_frames()[loop_thread])))


def _at(frame: FrameType) -> str:
    """Return the line of the function that a thread is in, for a message; empty if it is in none."""
    function = function_of([found for found, _ in traceback.walk_stack(frame)][::-1])
    if function is None or function.f_code.co_name != "open":
        return ""
    return f', at "{function.f_code.co_filename}", line {function.f_lineno}'


async def _listen(server: Server, instructions: Instructions) -> Address:
    path, interface = instructions.place.socket, instructions.interface
    await server.listen_unix(path)
    port = 0
    if interface is not None:
        with suppress(OSError):  # then only feeders on this machine can reach it
            port = await server.listen_tcp(interface)
    process = f"{socket.gethostname()}:{os.getpid()}"
    return Address(str(path), interface or "", port, str(instructions.place.log), process, instructions.exits)


async def _beat(settings: HostSettings, opened: asyncio.Event) -> None:
    """Put off the alarm that ends the process if something blocks its event loop.

    The alarm is the kernel's, so it works even if a function never releases the interpreter lock. Before it goes off,
    the stacks of all threads are written to the log, to show what blocks the loop.
    """
    while True:
        _put_off_alarm(settings, opened)
        _bound_log(_LOG)
        await asyncio.sleep(BEAT_SECONDS)


def _put_off_alarm(settings: HostSettings, opened: asyncio.Event) -> None:
    signal.setitimer(signal.ITIMER_REAL, settings.lease_seconds if opened.is_set() else OPEN_SECONDS)
    faulthandler.dump_traceback_later(min(STALL_SECONDS, 0.75 * settings.patience_seconds), file=_LOG)


def _bound_log(log: int) -> None:
    """Empty a log that has become too long; it is open for appending."""
    found = os.fstat(log)
    if stat.S_ISREG(found.st_mode) and found.st_size > LOG_BYTES_MAX:
        os.ftruncate(log, 0)
        os.write(log, f"(over {LOG_BYTES_MAX >> 20} MiB of output were removed here)\n".encode())


def _exit(place: HostFiles) -> NoReturn:
    faulthandler.cancel_dump_traceback_later()
    place.clear()
    leave(place.folder)
    end_process(0)
