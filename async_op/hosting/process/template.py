"""The template of hosts: a process that has loaded what all hosts need, and forks one in milliseconds.

A fresh interpreter spends 0.7 to 1.0 s of processor time on imports and has 140 MB of memory of its own; a fork takes
5 ms, and shares the pages of the template. There is one template for each executor and machine: the first task that
needs a host starts it, and it ends soon after its last host, or with the executor.

The template has one Python thread. It forks in its only loop, so no lock is held and no pool exists at that moment. The
native threads that OpenBLAS starts on import are ended by OpenBLAS's own fork handler, and start again on demand.
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
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, NamedTuple, NoReturn, TypeAlias

from async_op.hosting.errors import described_status
from async_op.hosting.process.places import HostPlace, leave, place_of
from async_op.hosting.wire.socket_paths import bindable

IDLE_SECONDS = 30.0
"""How long a template outlives its last host: a rescale, or the next query, finds it warm."""

FORKED = b"+"
"""What a forked host sends first. A connection that ends without it met a template that was about to end."""

_HEADER = struct.Struct("!Q")

_LOADED_ONCE = (
    *("PYTHON", "OMP_", "OPENBLAS_", "MKL_", "LD_", "ARROW_", "MALLOC_", "LC_", "LANG", "TZ"),
    *("FSSPEC_", "PANDAS_"),
)
"""How the names of variables begin that the interpreter and libraries read only when they are loaded."""

_LIMITS = tuple(getattr(resource, name) for name in sorted(dir(resource)) if name.startswith("RLIMIT_"))

Live: TypeAlias = Callable[[list[str], bytes, int | None, BinaryIO, str], object]
"""Runs a host until it ends, given the search path, the pickled instructions, what it watches, where it answers, and
the file that will have its exit status."""


class Order(NamedTuple):
    """What a template is told about the host that it forks, apart from the descriptors of its log and its owner.

    Attributes
    ----------
    environment : dict of str to str
        The environment that the host gets.
    folder : str
        The working directory of the starting process.
    search_path : list of str
        Its `sys.path`.
    instructions : bytes
        The pickled instructions of the host.
    """

    environment: dict[str, str]
    folder: str
    search_path: list[str]
    instructions: bytes


# In the process that starts a host.


def watch(pid: int) -> int | None:
    """Return a descriptor that becomes readable when a process ends, or None where the system cannot provide one."""
    if not hasattr(os, "pidfd_open"):
        return None
    try:
        return os.pidfd_open(pid)
    except OSError:
        return None


def begin(owner: int, modules: Sequence[str]) -> None:
    """Start the template if there is none: it loads what hosts need before the first one is wanted.

    It takes the arguments of `connect`, and raises the same errors.
    """
    place = place_of(_name_of(owner, modules), "", 0)
    held = place.try_lock()  # a template that lives has it
    if held is not None:
        try:
            _start(place, held, owner, modules)
        finally:
            os.close(held)


def connect(owner: int, modules: Sequence[str]) -> socket.socket | None:
    """Return a connection to the template, which this starts if there is none.

    Returns None while another process is about to start or end it: then try again.

    Parameters
    ----------
    owner : int
        A descriptor that becomes readable when the template must end.
    modules : sequence of str
        What the template loads before it forks.

    Raises
    ------
    HostUnreachable
        The template's folder or socket cannot be made.
    OSError
        The process cannot be started.
    """
    place = place_of(_name_of(owner, modules), "", 0)
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
        os.close(held)  # the template holds it, too
    return connected


def environment() -> dict[str, str]:
    """Return the environment of a host: this process's own, in which another Python finds the same modules."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


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


def send(connected: socket.socket, order: Order, log: int, watched: int | None) -> None:
    """Tell a template which host to fork, and give it the log and what the host watches."""
    told = pickle.dumps(order)
    socket.send_fds(connected, [_HEADER.pack(len(told))], [log] if watched is None else [log, watched])
    connected.sendall(told)
    connected.shutdown(socket.SHUT_WR)


def _start(
    place: HostPlace, held: int, owner: int, modules: Sequence[str], connected: socket.socket | None = None
) -> None:
    """Start a template under its lock; who connects is served once it has loaded everything.

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
                [sys.executable, "-P", "-m", "async_op.hosting.process", *map(str, [*handed_over, *place]), *modules],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=handed_over,
                env=environment(),
                check=False,  # it detaches at once; what becomes of it is seen by who connects
            )


def _name_of(owner: int, modules: Sequence[str]) -> str:
    """Return what tells templates apart: whatever a host would inherit that it cannot change after the fork."""
    facts: list[object] = [
        _process_of(owner),
        sys.executable,
        (__file__, Path(__file__).stat().st_mtime_ns),
        [resource.getrlimit(limit) for limit in _LIMITS],
        (os.getpriority(os.PRIO_PROCESS, 0), sorted(os.sched_getaffinity(0))),
        sorted((name, value) for name, value in os.environ.items() if name.startswith(_LOADED_ONCE)),
        list(modules),
    ]
    return "template " + hashlib.blake2b(repr(facts).encode(), digest_size=16).hexdigest()


def _process_of(owner: int) -> str:
    """Return the process that a pidfd stands for, with the time at which it started: ids are used again."""
    lines = Path(f"/proc/self/fdinfo/{owner}").read_text(encoding="ascii").splitlines()
    pid = next(line.split()[1] for line in lines if line.startswith("Pid:"))
    started = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[19]
    return f"{pid} since {started}"


# In the template.


def serve(listening: int, lock: int, owner: int, place: HostPlace, modules: Sequence[str], live: Live) -> NoReturn:
    """Load modules, then fork a host for each connection until nothing needs the template any more.

    Parameters
    ----------
    listening, lock, owner : int
        The descriptors of the socket on which starting processes connect, of the template's lock, and of what it must
        not outlive.
    place : HostPlace
        Where its socket and lock are.
    modules : sequence of str
        What all hosts need. None of them starts a thread when it is imported.
    live : callable
        Runs a host, in the forked process.
    """
    for module in modules:
        importlib.import_module(module)
    if "pyarrow" in sys.modules:
        # pyarrow loads pandas, where it is installed, for its first array: 0.3 s and 40 MB for each host.
        sys.modules["pyarrow"].array([])
    gc.collect()
    gc.freeze()  # a collection in a host would otherwise write to, and so copy, every page with a Python object
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C goes to the whole group, and hosts end by themselves
    with socket.socket(fileno=listening) as server:
        connected = _next_host(server, owner, place.exits)
    if connected is None:
        place.clear()
        leave(place.folder)
        os._exit(0)
    for inherited in (lock, owner):
        os.close(inherited)
    _become_host(connected, live, str(place.exits))


def _next_host(server: socket.socket, owner: int, exits: Path) -> socket.socket | None:
    """Fork for each connection; returns it in the forked process, and None in the template when that is to end."""
    woken, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda *_: None)  # without a handler nothing would be written to the pipe
    signal.set_wakeup_fd(wake)
    hosts = 0
    while True:
        ready, _, _ = select.select([server.fileno(), owner, woken], [], [], None if hosts else IDLE_SECONDS)
        if owner in ready or not (ready or hosts):
            return None
        if woken in ready:
            os.read(woken, 4096)
            hosts -= _note_ended(exits)
        if server.fileno() in ready:
            connected, _ = server.accept()
            if _fork():
                connected.close()
                hosts += 1
                continue
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            os.close(woken)
            os.close(wake)
            return connected


def _fork() -> int:
    with warnings.catch_warnings():
        # Python warns of native threads: OpenBLAS ends its own before a fork. There is no Python thread but this one.
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def _note_ended(exits: Path) -> int:
    """Note how hosts have ended, for their feeders, and let the kernel forget them; returns how many."""
    ended = 0
    with suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            ended += 1
            with suppress(OSError), exits.open("a", encoding="ascii") as noted:
                noted.write(f"{found[0]} {described_status(os.waitstatus_to_exitcode(found[1]))}\n")
    return ended


# In a forked host.


def _become_host(connected: socket.socket, live: Live, exits: str) -> NoReturn:
    """Take over what the starting process has, and run the host; the process ends with it."""
    try:
        with connected:
            connected.sendall(FORKED)
            order, log, watched = _receive(connected)
            answer = os.fdopen(os.dup(connected.fileno()), "wb")
        for stream in (1, 2):
            os.dup2(log, stream)
        os.close(log)
        _take_over(order)
        live(order.search_path, order.instructions, watched, answer, exits)
    except BaseException:  # noqa: BLE001 - the log has it: `live` has printed it, or it is printed here
        traceback.print_exc()
    finally:
        os._exit(1)  # a host that ends well has done so already


def _receive(connected: socket.socket) -> tuple[Order, int, int | None]:
    header, descriptors, _, _ = socket.recv_fds(connected, _HEADER.size, 2, socket.MSG_WAITALL)
    (size,) = _HEADER.unpack(header)
    with connected.makefile("rb") as told:
        order = pickle.loads(told.read(size))  # noqa: S301 - from a process of this user, who alone can open the folder
    log, *rest = descriptors
    return order, log, rest[0] if rest else None


def _take_over(order: Order) -> None:
    """Take what a fork has of its template in place of the starting process."""
    os.environ.clear()
    os.environ.update(order.environment)
    time.tzset()
    with suppress(OSError):  # it may have been removed; then a fresh process would have none either
        os.chdir(order.folder)
    # Python's own generator seeds itself in a fork; NumPy's would give all hosts the same numbers.
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()
