"""The driver's side of hosting: it knows where the hosts are, renews their leases, asks how they are, and ends them."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence

from async_op.hosting.errors import HostLost, HostUnreachable
from async_op.hosting.host import LEASE_SECONDS
from async_op.hosting.messages import DRIVER, Committed, Fence, Message, Poll, Renew, Reply, Status, Stop
from async_op.hosting.placement import Address
from async_op.hosting.sockets import SocketChannel, connect

_RENEWALS_PER_LEASE = 4

_ANSWER_SECONDS = 5.0

_RETRY_SECONDS = 60.0
"""Pause before the next try at a host that could not be reached: a firewall may hide many, and each try takes time."""


class Overseer:
    """Looks after the hosts of one generation. Any thread may call it; a thread of its own renews the leases.

    The network may keep the driver from a host that tasks can reach. Such a host lives on hellos, each of which renews
    its lease; without them it ends.

    Parameters
    ----------
    generation : str
        The generation of the hosts.
    secret : bytes
        The secret of the run.
    lease_seconds : float
        The length of the hosts' leases, which are renewed four times as often.
    """

    def __init__(self, generation: str, secret: bytes, lease_seconds: float = LEASE_SECONDS) -> None:
        self._generation = generation
        self._secret = secret
        self._pause_seconds = lease_seconds / _RENEWALS_PER_LEASE
        self._lock = threading.Lock()
        self._addresses: dict[int, Address] = {}
        self._channels: dict[int, SocketChannel] = {}
        self._left_alone: dict[int, float] = {}
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="keygroups leases", daemon=True)

    def __enter__(self) -> Overseer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()
        with self._lock:
            for subtask in list(self._channels):
                self._hang_up(subtask)

    def report(self, subtask: int, address: Address | None) -> None:
        """Note the address of a subtask's host, as its task reported it; None if the operator ran in the task."""
        with self._lock:
            if self._addresses.get(subtask) != address:
                self._hang_up(subtask)
                self._left_alone.pop(subtask, None)
            if address is None:
                self._addresses.pop(subtask, None)
            else:
                self._addresses[subtask] = address

    def known(self, subtask: int) -> Sequence[Address]:
        """Return the address at which the next epoch may find a subtask's host, or nothing."""
        with self._lock:
            return [self._addresses[subtask]] if subtask in self._addresses else []

    def poll(self) -> Mapping[int, Status]:
        """Return the status of each subtask's host; hosts that do not answer are left out."""
        replies = self._ask(Poll())
        return {subtask: reply for subtask, reply in replies.items() if isinstance(reply, Status)}

    def committed(self, version: int) -> None:
        """Tell all hosts that a version is committed: a host whose final cut belongs to it ends."""
        self._ask(Committed(self._generation, version))

    def stop(self, version: int) -> None:
        """Tell all hosts to end, even while calls are under way. A host that is not reached ends with its lease.

        Parameters
        ----------
        version : int
            The version of the newest manifest.
        """
        self._ask(Stop(self._generation, Fence(version, DRIVER)))

    def _renew(self) -> None:
        while not self._stopped.wait(self._pause_seconds):
            self._ask(Renew(self._generation))

    def _ask(self, message: Message) -> dict[int, Reply]:
        """Send a message to all hosts, then gather the replies that come within `_ANSWER_SECONDS`."""
        with self._lock:
            asked = [subtask for subtask in self._addresses if self._is_sent(subtask, message)]
            until = time.monotonic() + _ANSWER_SECONDS
            replies = {subtask: self._answer(subtask, until) for subtask in asked}
            return {subtask: reply for subtask, reply in replies.items() if reply is not None}

    def _is_sent(self, subtask: int, message: Message) -> bool:
        if time.monotonic() < self._left_alone.get(subtask, 0.0):
            return False
        try:
            if subtask not in self._channels:
                self._channels[subtask] = connect(self._addresses[subtask], self._secret, _ANSWER_SECONDS)
            self._channels[subtask].send(message)
        except (HostUnreachable, HostLost):
            self._hang_up(subtask)
            self._left_alone[subtask] = time.monotonic() + _RETRY_SECONDS
            return False
        return True

    def _answer(self, subtask: int, until: float) -> Reply | None:
        """Wait for a reply. If it is late, hang up: otherwise it would be taken for the reply to the next message."""
        try:
            while (reply := self._channels[subtask].receive()) is None:
                if time.monotonic() > until:
                    break
        except HostLost:
            reply = None
        if reply is None:
            self._hang_up(subtask)
        return reply

    def _hang_up(self, subtask: int) -> None:
        channel = self._channels.pop(subtask, None)
        if channel is not None:
            channel.close()
