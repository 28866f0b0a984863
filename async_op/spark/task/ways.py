"""How a task gets at the host of its subtask: one that lives, one that it starts, or (H7) one in the task itself."""

from __future__ import annotations

import math
import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pickle import loads
from typing import Any

from pyspark import SparkFiles

from async_op.hosting.errors import HostUnreachable
from async_op.hosting.feeder import Channel, Waiting
from async_op.hosting.host import Residence
from async_op.hosting.launch import launch, watch
from async_op.hosting.placement import Address
from async_op.hosting.places import Place, place_of
from async_op.hosting.resident import Instructions
from async_op.hosting.sockets import connect
from async_op.hosting.thread import HostThread
from async_op.spark.task.blueprint import EpochBlueprint

_LEASE_SECONDS = 10.0**9
"""A host in the task is not renewed: it ends with the task."""


@dataclass(frozen=True, kw_only=True)
class HostAccess:
    """What a task must know of the hosts of its query.

    Attributes
    ----------
    generation : str
        Theirs.
    blueprint : EpochBlueprint or bytes
        What makes an operator; as the driver has pickled it, where hosts are to get it.
    run_id : str
        Names the folders of hosts.
    secret : bytes or None
        Of the run; None if operators run in their tasks.
    addresses : mapping of int to Address
        Where the host of each subtask was last.
    driver_host : str or None
        An address that a machine of the cluster can reach; None if hosts listen on no network.
    """

    generation: str
    blueprint: EpochBlueprint | bytes
    run_id: str = ""
    secret: bytes | None = field(default=None, repr=False)
    addresses: Mapping[int, Address] = field(default_factory=dict)
    driver_host: str | None = None


class TaskWays:
    """The ways of one task, which leaves it to close what belongs to the task. One thread may call it.

    Parameters
    ----------
    access : HostAccess
        The query's.
    residence : Residence
        What a new host is restored with.

    Attributes
    ----------
    reached : Address or None
        The host that it was connected to last.
    """

    def __init__(self, access: HostAccess, residence: Residence) -> None:
        self._access = access
        self._residence = residence
        self._own: HostThread | None = None
        self.reached: Address | None = None

    def __enter__(self) -> TaskWays:
        return self

    def __exit__(self, *raised: Any) -> None:
        if self._own is not None:
            self._own.__exit__(*raised)

    def known(self) -> Sequence[Address]:
        """Return where the subtask's host was last, and where an attempt that failed has left one on this machine."""
        address = self._access.addresses.get(self._residence.subtask_index)
        reported = [] if address is None else [address]
        if self._access.secret is None:
            return reported
        try:
            socket_path = self._place().socket
        except HostUnreachable:
            return reported
        is_new = str(socket_path) not in {one.path for one in reported}
        return [*reported, Address(str(socket_path))] if is_new and socket_path.exists() else reported

    def connect(self, address: Address) -> Channel:
        """Connect; raises `HostUnreachable`."""
        assert self._access.secret is not None, "without hosts there is no address"
        channel = connect(address, self._access.secret)
        self.reached = address
        return channel

    def start(self) -> Waiting[Address]:
        """Start a host on this machine; raises `HostUnreachable`."""
        access, residence = self._access, self._residence
        if access.secret is None or not isinstance(access.blueprint, bytes):
            raise HostUnreachable("operators of this query run in their tasks")
        place = self._place()
        watched = watch(os.getppid())
        try:
            instructions = Instructions(
                place=place,
                secret=access.secret,
                blueprint=access.blueprint,
                residence=residence,
                interface=None if access.driver_host is None else _interface_to(access.driver_host),
                watched=watched,
                prepare=partial(_share_files, SparkFiles.getRootDirectory()),
            )
            return (yield from launch(instructions))
        finally:
            if watched is not None:
                os.close(watched)

    def _place(self) -> Place:
        residence = self._residence
        return place_of(self._access.run_id, residence.generation, residence.subtask_index)

    def in_task(self) -> Waiting[Channel]:
        """Open the operator in the task."""
        blueprint = self._access.blueprint
        if isinstance(blueprint, bytes):
            blueprint = loads(blueprint)  # noqa: S301 - the driver's own
        residence = replace(self._residence, is_resident=False, lease_seconds=_LEASE_SECONDS, patience_seconds=math.inf)
        self._own = HostThread(blueprint, residence).__enter__()
        yield
        return self._own.channel()


def _share_files(root: str) -> None:
    """Let `SparkFiles.get` find what was added to the session, as in the worker that has started this process."""
    SparkFiles._root_directory = root
    SparkFiles._is_running_on_worker = True


def _interface_to(host: str) -> str | None:
    """Return the address by which this machine is reached from another; nothing is sent to find out."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((host, 9))
        except OSError:
            return None
        address: str = probe.getsockname()[0]
        return address
