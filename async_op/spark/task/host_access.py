"""How a task reaches the host of its subtask: one that is running, one that it starts, or (H7) one inside the task."""

from __future__ import annotations

import math
import os
import socket
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pickle import loads
from typing import Any

from pyspark import SparkFiles

from async_op.hosting.errors import HostUnreachable
from async_op.hosting.feeder import HostChannel, Waiting
from async_op.hosting.host_settings import HostSettings
from async_op.hosting.messages import Address
from async_op.hosting.process.fork_server import watch
from async_op.hosting.process.host_files import HostFiles, files_of
from async_op.hosting.process.host_process import Instructions
from async_op.hosting.process.launch import COMMON_MODULES, launch
from async_op.hosting.process.local_hosts import found_at
from async_op.hosting.thread import HostThread
from async_op.hosting.wire.sockets import SocketChannel, connecting
from async_op.resilience.lending import Allowance
from async_op.spark.task.newest_snapshot import Newest
from async_op.spark.task.operator_factory import EpochOperatorFactory
from async_op.threads.operator_process import set_up_logging
from async_op.threads.waits import Waits

MODULES = (*COMMON_MODULES, __name__)
"""What every host of a query needs: this module also loads PySpark, which the modules of most functions import."""

_LEASE_SECONDS = 10.0**9
"""Without end in practice: the lease of a host inside a task is never renewed, and the host ends with the task."""


@dataclass(frozen=True, kw_only=True)
class HostAccess:
    """What a task must know to reach or start the hosts of its query.

    Attributes
    ----------
    generation : str
        The generation of the hosts.
    factory : EpochOperatorFactory or bytes
        Makes the operators; pickled by the driver if they live in hosts.
    run_id : str
        The run, from which the names of the hosts' folders are derived.
    secret : bytes or None
        The secret of the run; None if operators run in their tasks.
    addresses : mapping of int to Address
        The address last reported for the host of each subtask.
    driver_host : str or None
        The driver's address, which tells a host on which interface to listen; None if hosts listen on no network.
    allowances : sequence of mapping
        What each operator may use of its limits in an epoch; empty if each keeps its share of them.
    log_levels : mapping of str to int
        The levels of the driver's loggers by their names, which hold in hosts, too; the root's name is "".
    given_up : mapping of int to str
        For some subtasks the host, as ``machine:process id``, that a task has given up because it was silent.
    """

    generation: str
    factory: EpochOperatorFactory | bytes
    run_id: str = ""
    secret: bytes | None = field(default=None, repr=False)
    addresses: Mapping[int, Address] = field(default_factory=dict)
    driver_host: str | None = None
    allowances: Sequence[Allowance] = ()
    log_levels: Mapping[str, int] = field(default_factory=dict)
    given_up: Mapping[int, str] = field(default_factory=dict)

    @property
    def are_hosts_missing(self) -> bool:
        """Whether there are hosts to start, because none has been reported."""
        return self.secret is not None and not self.addresses

    def allowance(self, subtask_index: int) -> Allowance | None:
        """Return what the operator of a subtask may use of its limits; None if it keeps its share of them."""
        return self.allowances[subtask_index] if self.allowances else None


class TaskWays:
    """How one task reaches its host. Leaving it closes a host that ran inside the task. One thread may call it.

    Parameters
    ----------
    access : HostAccess
        What the driver knows about the hosts.
    newest : Newest
        The snapshot that a new host is restored from.
    parallelism, subtask_index : int
        The number of subtasks, and the index of this one.
    waits : Waits
        How the task waits for its host.

    Attributes
    ----------
    reached : Address or None
        The host to which the task was connected last; None before the first.
    asked : Address or None
        The host that the task talks to, or tries to; None if there is none.
    """

    def __init__(self, access: HostAccess, newest: Newest, parallelism: int, subtask_index: int, waits: Waits) -> None:
        self._waits = waits
        self._access = access
        self._newest = newest
        self._parallelism = parallelism
        self._subtask_index = subtask_index
        self._own: HostThread | None = None
        self._given_up = access.given_up.get(subtask_index, "")
        self.reached: Address | None = None
        self.asked: Address | None = None
        self._asked_at = 0.0
        self._channel: SocketChannel | None = None

    def __enter__(self) -> TaskWays:
        return self

    def __exit__(self, *raised: Any) -> None:
        if self._own is not None:
            self._own.__exit__(*raised)

    def known(self) -> Sequence[Address]:
        """Return the address last reported, and that which a failed attempt may have left on this machine.

        A host that was given up is left out: whatever it held is lost, and it may be silent for as long again.
        """
        address = self._access.addresses.get(self._subtask_index)
        found = [] if address is None else [address]
        if self._access.secret is None:
            return found
        with suppress(HostUnreachable):
            socket_path = self._place().socket
            if socket_path.exists() and str(socket_path) not in {one.path for one in found}:
                found.append(found_at(socket_path))
        return [one for one in found if not self._given_up or one.process != self._given_up]

    @property
    def silent_seconds(self) -> float:
        """How long the task has waited in vain for a sign of life of the host that it asks."""
        return time.monotonic() - self._asked_at if self._channel is None else self._channel.silent_seconds

    def connect(self, address: Address) -> Waiting[HostChannel]:
        """Connect to a host; raises `HostUnreachable` if none answers there."""
        assert self._access.secret is not None, "without hosts there are no addresses"
        self.asked, self._asked_at, self._channel = address, time.monotonic(), None
        try:
            channel = yield from connecting(address, self._access.secret, waits=self._waits)
        except HostUnreachable as unreachable:
            self.asked = None
            if isinstance(unreachable.__cause__, TimeoutError):  # it is there, and says nothing
                self.give_up(address)
            raise
        self.reached, self._channel = address, channel
        return channel

    def give_up(self, address: Address) -> None:
        """Note that a host was silent for too long."""
        self._given_up = address.process

    def start(self) -> Waiting[Address]:
        """Start a host on this machine; raises `HostUnreachable` if it cannot."""
        access, self.asked = self._access, None
        if access.secret is None or not isinstance(access.factory, bytes):
            raise HostUnreachable("operators of this query run in their tasks")
        place = self._place()
        watched = watch(os.getppid())
        try:
            instructions = Instructions(
                place=place,
                secret=access.secret,
                factory=access.factory,
                settings=self._settings(),
                interface=None if access.driver_host is None else _interface_to(access.driver_host),
                watched=watched,
                prepare=partial(_prepare, SparkFiles.getRootDirectory(), access.log_levels),
                given_up=self._given_up,
            )
            return (yield from launch(instructions, MODULES))
        finally:
            if watched is not None:
                os.close(watched)

    def _settings(self) -> HostSettings:
        return HostSettings(
            generation=self._access.generation,
            subtask_index=self._subtask_index,
            restore=self._newest.restore(self._subtask_index, self._parallelism),
            manifest_id=self._newest.manifest_id,
            allowance=self._access.allowance(self._subtask_index),
        )

    def _place(self) -> HostFiles:
        return files_of(self._access.run_id, self._access.generation, self._subtask_index)

    def in_task(self) -> Waiting[HostChannel]:
        """Open the operator inside the task, for this epoch only."""
        self.asked = None
        factory = self._access.factory
        if isinstance(factory, bytes):
            factory = loads(factory)  # noqa: S301 - pickled by the driver
        settings = self._settings()
        settings = replace(settings, is_resident=False, lease_seconds=_LEASE_SECONDS, patience_seconds=math.inf)
        self._own = HostThread(factory, settings).__enter__()
        yield
        return self._own.channel(self._waits)


def _prepare(root: str, levels: Mapping[str, int]) -> None:
    """Set up logging as in the driver, and let `SparkFiles.get` find what was added to the session, as in a worker."""
    set_up_logging(levels)
    SparkFiles._root_directory = root
    SparkFiles._is_running_on_worker = True


def _interface_to(host: str) -> str | None:
    """Return the address of this machine on the route to a host, or None without a route; nothing is sent.

    Spark puts addresses of IPv6 in brackets. They are used only where IPv4 has no route.
    """
    with suppress(OSError):
        for family, kind, protocol, _, place in sorted(socket.getaddrinfo(host.strip("[]"), 9, type=socket.SOCK_DGRAM)):
            with suppress(OSError), socket.socket(family, kind, protocol) as probe:
                probe.connect(place)
                address: str = probe.getsockname()[0]
                return address
    return None
