"""The fork server: a process that has loaded what hosts, or children of jobs, need, and forks one in milliseconds.

A fresh interpreter spends 0.7 to 1.0 s of processor time on imports and has 140 MB of memory of its own; a fork takes
5 ms, and shares the pages of the fork server. There is one for each executor and machine: the first task that needs a
host starts it, and it ends soon after its last host, or with the executor. A program with jobs has one for the children
of all of its jobs.

The fork server has one Python thread. It forks in its only loop, so no lock is held and no pool exists then. The native
threads that OpenBLAS starts on import are ended by OpenBLAS's own fork handler, and start again on demand.
"""

from __future__ import annotations

import gc
import hashlib
import importlib
import os
import pickle
import resource
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.util import _args_from_interpreter_flags  # type: ignore[attr-defined]  # as it starts Python itself
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, NoReturn, TypeAlias

from async_op.hosting.errors import HostUnreachable, described_status
from async_op.hosting.process.host_files import HostFiles, files_of, leave
from async_op.hosting.wire.socket_paths import bindable

IDLE_SECONDS = 30.0
"""How long a fork server outlives its last host: a rescale, or the next query, finds it warm."""

_FORKED = struct.Struct("!Q")
"""What a forked process sends first: its id. A connection that ends without it met a server that was about to end."""

_FORK_SERVERS_MAX = 3
"""So many fork servers in a row may end at the moment at which they are asked for a fork."""

_HEADER = struct.Struct("!Q")

_DESCRIPTORS_MAX = 4
"""A process gets its standard output, its standard error, what it watches, and a connection."""

_LOADED_ONCE = (
    *("PYTHON", "OMP_", "OPENBLAS_", "MKL_", "LD_", "ARROW_", "MALLOC_", "LC_", "LANG", "TZ"),
    *("FSSPEC_", "PANDAS_"),
)
"""How the names of variables begin that the interpreter and libraries read only when they are loaded."""

_INHERITED = ("Umask", "Uid", "Gid", "Groups", "CapEff", "NoNewPrivs", "Seccomp")
"""What a process inherits of rights, as the system names it."""

_HANDLED = (signal.SIGCHLD, signal.SIGINT, signal.SIGTERM)
"""The signals that do nothing in a fork server but wake it."""

_LIMITS = tuple(getattr(resource, name) for name in sorted(dir(resource)) if name.startswith("RLIMIT_"))

Live: TypeAlias = Callable[[list[str], bytes, list[int], BinaryIO, str], object]
"""Runs a forked process until it ends, given the search path, the pickled instructions, the descriptors that it got,
where it answers, and the file that will have its exit status."""


class Order(NamedTuple):
    """What a fork server is told about the process that it forks, apart from descriptors.

    Attributes
    ----------
    environment : dict of str to str
        The environment that the process gets.
    folder : str
        The working directory of the starting process.
    search_path : list of str
        Its `sys.path`.
    instructions : bytes
        The pickled instructions: an object with a method `live`, which runs the process until it ends.
    """

    environment: dict[str, str]
    folder: str
    search_path: list[str]
    instructions: bytes

    @classmethod
    def of(cls, instructions: bytes) -> Order:
        """Return the order for a process that has what this one has."""
        return cls(environment(), str(Path.cwd()), sys.path, instructions)


class Forked(NamedTuple):
    """A process that a fork server has forked.

    Attributes
    ----------
    connection : socket
        What it says can be `heard` here.
    pid : int
        Its number.
    exits : Path
        The file that will have its exit status.
    """

    connection: socket.socket
    pid: int
    exits: Path


# In the process that starts another.


def watch(pid: int) -> int | None:
    """Return a descriptor that becomes readable when a process ends, or None where the system cannot provide one."""
    if not hasattr(os, "pidfd_open"):
        return None
    try:
        return os.pidfd_open(pid)
    except OSError:
        return None


def begin(owner: int, modules: Sequence[str]) -> None:
    """Start the fork server if there is none: it loads what hosts need before the first one is wanted.

    It takes the arguments of `connect`, and raises the same errors.
    """
    place = files_of(_name_of(owner, modules), "", 0)
    held = place.try_lock()  # a fork server that lives has it
    if held is not None:
        try:
            _start(place, held, owner, modules)
        finally:
            os.close(held)


def connect(owner: int, modules: Sequence[str]) -> socket.socket | None:
    """Return a connection to the fork server, which this starts if there is none.

    Returns None while another process is about to start or end it: then try again.

    Parameters
    ----------
    owner : int
        A descriptor that becomes readable when the fork server must end.
    modules : sequence of str
        What the fork server loads before it forks.

    Raises
    ------
    HostUnreachable
        The fork server's folder or socket cannot be made.
    OSError
        The process cannot be started.
    """
    place = files_of(_name_of(owner, modules), "", 0)
    connected = socket.socket(socket.AF_UNIX)
    try:
        with bindable(place.socket) as path:
            connected.connect(path)
    except (FileNotFoundError, ConnectionRefusedError):
        connected.close()
    else:
        return connected
    held = place.try_lock()
    if held is None:
        return None
    connected = socket.socket(socket.AF_UNIX)
    try:
        _start(place, held, owner, modules, connected)
    finally:
        os.close(held)  # the fork server holds it, too
    return connected


def fork(owner: int, modules: Sequence[str], order: Order, descriptors: Sequence[int], until: float) -> Forked | None:
    """Have a process forked by the fork server, which this starts if there is none; None if no fork server does it.

    It takes the first arguments of `connect`, and raises the same errors, and `TimeoutError` when the monotonic clock
    is there. The process gets the descriptors: its standard output, its standard error, and what its instructions need.
    """
    pause = threading.Event()
    for _ in range(_FORK_SERVERS_MAX):
        while (connected := connect(owner, modules)) is None:
            if time.monotonic() > until:
                return None
            pause.wait(0.01)
        if pid := _pid_from(connected, order, descriptors, until):
            return Forked(connected, pid, files_of(_name_of(owner, modules), "", 0).exits)
    return None


def _pid_from(connected: socket.socket, order: Order, descriptors: Sequence[int], until: float) -> int:
    """Give an order to a fork server and return the process that it forks; 0 if the fork server was about to end."""
    said = b""
    try:
        connected.settimeout(max(0.01, until - time.monotonic()))
        _send(connected, order, descriptors)
        said = connected.recv(_FORKED.size, socket.MSG_WAITALL)
    except ConnectionError:
        pass
    finally:
        if len(said) < _FORKED.size:
            connected.close()
    return _FORKED.unpack(said)[0] if len(said) == _FORKED.size else 0


def environment() -> dict[str, str]:
    """Return this process's environment, in which another Python finds the same modules."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path and isinstance(path, str))}


def python_command() -> list[str]:
    """Return the command that starts a Python with the options of this one, such as ``-O``, ``-W`` and ``-X utf8``.

    Options that ignore `environment` are left out.
    """
    flags = _args_from_interpreter_flags()
    return [sys.executable, "-P", *(flag for flag in flags if flag not in ("-I", "-E", "-s", "-P"))]


def say(answer: BinaryIO, what: object) -> None:
    """Tell the starting process something, from a host."""
    told = pickle.dumps(what)
    answer.write(_HEADER.pack(len(told)) + told)
    answer.flush()


def heard(connected: socket.socket, until: float) -> Iterator[object]:
    """Yield what a host says, until it ends or says no more; raises `TimeoutError` when the monotonic clock is there.

    A process that has ended says no more: the kernel closes its descriptors.
    """
    with connected.makefile("rb") as answer:
        while True:
            connected.settimeout(max(0.01, until - time.monotonic()))
            header = answer.read(_HEADER.size)
            if len(header) < _HEADER.size:
                return
            (size,) = _HEADER.unpack(header)
            yield pickle.loads(answer.read(size))  # noqa: S301 - from the process that was started here


def _send(connected: socket.socket, order: Order, descriptors: Sequence[int]) -> None:
    told = pickle.dumps(order)
    socket.send_fds(connected, [_HEADER.pack(len(told))], descriptors)
    connected.sendall(told)
    connected.shutdown(socket.SHUT_WR)


def _start(
    place: HostFiles, held: int, owner: int, modules: Sequence[str], connected: socket.socket | None = None
) -> None:
    """Start a fork server under its lock; who connects is served once it has loaded everything.

    `connected` is connected before it starts: if it ends at once, who holds the connection hears of that.
    """
    place.socket.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as listening:
        with bindable(place.socket) as path:
            listening.bind(path)
            listening.listen()
            if connected is not None:
                connected.connect(path)
        handed_over = [listening.fileno(), held, owner]
        with place.open_log() as log:
            subprocess.run(
                [*python_command(), "-m", "async_op.hosting.process", *map(str, [*handed_over, *place]), *modules],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=handed_over,
                env=environment(),
                check=False,  # it detaches at once; what becomes of it is seen by who connects
            )


def _name_of(owner: int, modules: Sequence[str]) -> str:
    """Return what tells fork servers apart: whatever a host would inherit that it cannot change after the fork."""
    facts: list[object] = [
        _process_of(owner),
        python_command(),
        (__file__, Path(__file__).stat().st_mtime_ns),
        [resource.getrlimit(limit) for limit in _LIMITS],
        (os.getpriority(os.PRIO_PROCESS, 0), sorted(os.sched_getaffinity(0))),
        sorted((name, value) for name, value in os.environ.items() if name.startswith(_LOADED_ONCE)),
        (os.getpgrp(), [line for line in _status_lines() if line.startswith(_INHERITED)]),
        list(modules),
    ]
    return "fork server " + hashlib.blake2b(repr(facts).encode(), digest_size=16).hexdigest()


def _status_lines() -> list[str]:
    return Path("/proc/self/status").read_text(encoding="utf-8", errors="replace").splitlines()


def _process_of(owner: int) -> str:
    """Return the process that a pidfd stands for, with the time at which it started: ids are used again."""
    lines = Path(f"/proc/self/fdinfo/{owner}").read_text(encoding="ascii").splitlines()
    pid = next((line.split()[1] for line in lines if line.startswith("Pid:")), "unknown")  # then there is no such file
    started = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[19]
    return f"{pid} since {started}"


# In the fork server.


def serve(listening: int, lock: int, owner: int, place: HostFiles, modules: Sequence[str], live: Live) -> NoReturn:
    """Load modules, then fork a process for each connection until nothing needs the fork server any more.

    Parameters
    ----------
    listening, lock, owner : int
        The descriptors of the socket on which starting processes connect, of its lock, and of what it must
        not outlive.
    place : HostFiles
        Where its socket and lock are.
    modules : sequence of str
        What all forked processes need. None of them starts a thread when it is imported.
    live : callable
        Runs a forked process.
    """
    for module in modules:
        importlib.import_module(module)
    if "pyarrow" in sys.modules:
        # pyarrow loads pandas, where it is installed, for its first array: 0.3 s and 40 MB for each host.
        sys.modules["pyarrow"].array([])
    gc.collect()
    gc.freeze()  # a collection in a fork would otherwise write to, and so copy, every page with a Python object
    with socket.socket(fileno=listening) as server:
        connected = _next_connection(server, owner, place.exits)
    if connected is None:
        place.clear()
        leave(place.folder)
        os._exit(0)
    for inherited in (lock, owner):
        os.close(inherited)
    _become_fork(connected, live, str(place.exits))


def _next_connection(server: socket.socket, owner: int, exits: Path) -> socket.socket | None:
    """Fork for each connection; returns it in the forked process, and None in the fork server when that is to end."""
    woken, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    # SIGCHLD: without a handler nothing would be written to the pipe. The others go to the whole group, whose processes
    # end by themselves; the fork server stays to note how, and ends with its owner.
    before = {number: signal.signal(number, lambda *_: None) for number in _HANDLED}
    blocked = signal.pthread_sigmask(signal.SIG_UNBLOCK, _HANDLED)  # inherited from the thread that has started this
    signal.set_wakeup_fd(wake)
    forks = 0
    while True:
        ready, _, _ = select.select([server.fileno(), owner, woken], [], [], None if forks else IDLE_SECONDS)
        if owner in ready or not (ready or forks):
            return None
        if woken in ready:
            os.read(woken, 4096)
            forks -= _note_ended(exits)
        if server.fileno() in ready:
            connected, _ = server.accept()
            forked = _fork()
            if forked != 0:
                connected.close()
                forks += forked is not None
                continue
            signal.set_wakeup_fd(-1)
            for number, handler in before.items():
                signal.signal(number, handler)
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
            os.close(woken)
            os.close(wake)
            return connected


def _fork() -> int | None:
    """Fork; None if that fails, or a module has started a thread, which would be missing in the fork with its locks."""
    if threading.active_count() > 1:
        return None
    with warnings.catch_warnings():
        # Python warns of native threads: OpenBLAS ends its own before a fork. There is no Python thread but this one.
        warnings.simplefilter("ignore", DeprecationWarning)
        try:
            return os.fork()
        except OSError:  # there are too many processes, or there is too little memory; the forks that live are watched
            return None


def _note_ended(exits: Path) -> int:
    """Note how forks have ended, for the processes that use them, and let the kernel forget them; returns how many."""
    ended = 0
    with suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            ended += 1
            with suppress(OSError), exits.open("a", encoding="ascii") as noted:
                noted.write(f"{found[0]} {described_status(os.waitstatus_to_exitcode(found[1]))}\n")
    return ended


# In a forked process.


def _become_fork(connected: socket.socket, live: Live, exits: str) -> NoReturn:
    """Take over what the starting process has, and do as it says; the process ends with it."""
    try:
        with connected:
            connected.sendall(_FORKED.pack(os.getpid()))
            order, (output, errors, *others) = _receive(connected)
            answer = os.fdopen(os.dup(connected.fileno()), "wb")
        for stream, descriptor in ((1, output), (2, errors)):
            os.dup2(descriptor, stream)
            os.close(descriptor)
        _take_over(order)
        live(order.search_path, order.instructions, others, answer, exits)
    except BaseException:  # noqa: BLE001 - the log has it: `live` has printed it, or it is printed here
        traceback.print_exc()
    finally:
        os._exit(1)  # a process that ends well has done so already


def _receive(connected: socket.socket) -> tuple[Order, list[int]]:
    header, descriptors, _, _ = socket.recv_fds(connected, _HEADER.size, _DESCRIPTORS_MAX, socket.MSG_WAITALL)
    (size,) = _HEADER.unpack(header)
    with connected.makefile("rb") as told:
        order = pickle.loads(told.read(size))  # noqa: S301 - from a process of this user, who alone can open the folder
    return order, list(descriptors)


def _take_over(order: Order) -> None:
    """Take what a fork has of its fork server in place of the starting process."""
    os.environ.clear()
    os.environ.update(order.environment)
    time.tzset()
    with suppress(OSError):  # it may have been removed; then a fresh process would have none either
        os.chdir(order.folder)
    importlib.invalidate_caches()  # folders of the search path may be younger than the fork server
    # Python's own generator seeds itself in a fork; NumPy's would give all forks the same numbers.
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()


@dataclass(frozen=True, slots=True)
class EarlyTask:
    """A task that its worker loads only once the fork server is on its way, so that both import at the same time.

    A worker imports for 0.2 s of processor time until it can run its task, the fork server for 0.7 s until it can fork
    a host. One after the other, they were most of a cold start. So this module imports next to nothing.

    Attributes
    ----------
    task : bytes
        The pickled task, which will ask for a host.
    modules : sequence of str
        What the fork server loads; see `launch`.
    """

    task: bytes = field(repr=False)
    modules: Sequence[str]

    def __call__(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Start the fork server, then load the task and run it."""
        if sys.platform == "linux":
            with suppress(OSError, HostUnreachable):  # the launch of the host finds it out, and says so
                _begin_fork_server(self.modules)
        task: Callable[[Iterable[Any]], Iterator[Any]] = pickle.loads(self.task)  # noqa: S301 - pickled by the driver
        return task(batches)


def _begin_fork_server(modules: Sequence[str]) -> None:
    owner = watch(os.getppid())  # as the task's hosts, it must not outlive Spark's daemon
    if owner is not None:
        try:
            begin(owner, modules)
        finally:
            os.close(owner)
