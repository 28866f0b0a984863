"""The driver's side of hosting: it knows where the hosts are, renews their leases, asks how they are, and ends them."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping

from async_op.hosting.errors import HostLost, HostUnreachable
from async_op.hosting.fencing import DRIVER, Fence
from async_op.hosting.lease import LEASE_SECONDS, PATIENCE_SECONDS, SILENT_SECONDS
from async_op.hosting.messages import Address, Committed, Conclude, Message, Poll, Renew, Reply, Status, Stop
from async_op.hosting.wire.sockets import SocketChannel, connect
from snapshots.daemon_threads import DaemonPool

_log = logging.getLogger(__package__)

_RENEWALS_PER_LEASE = 4

_ANSWER_SECONDS = SILENT_SECONDS

_RETRY_SECONDS = 60.0
"""Pause before the next try at a host that could not be reached: a firewall may hide many, and each try takes time."""

_CONNECTIONS_AT_ONCE = 32
"""Connections are opened side by side: one machine that does not answer must not hold up the leases of the others."""


class HostSupervisor:
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
    told : set of str, optional
        The processes of silent hosts that the log has named already; supervisors may share the set.
    """

    def __init__(
        self, generation: str, secret: bytes, lease_seconds: float = LEASE_SECONDS, told: set[str] | None = None
    ) -> None:
        self._generation = generation
        self._secret = secret
        self._pause_seconds = lease_seconds / _RENEWALS_PER_LEASE
        self._addresses: dict[int, Address] = {}
        self._addresses_lock = threading.Lock()  # held for moments only: an epoch reports while hosts are asked
        self._channels: dict[Address, SocketChannel] = {}
        self._left_alone: dict[Address, float] = {}
        self._told: set[str] = set() if told is None else told
        self._asking = threading.Lock()  # of the channels: one question at a time
        self._cuts: Mapping[int, str | None] = {}
        self._stopped = threading.Event()
        self._awake = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="keygroups leases", daemon=True)

    def __enter__(self) -> HostSupervisor:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._awake.set()
        self._thread.join()
        with self._asking:
            self._keep_channels_of(())

    def report(self, subtask: int, address: Address | None) -> None:
        """Note the address of a subtask's host, as its task reported it; None if the operator ran in the task."""
        with self._addresses_lock:
            if address is None:
                self._addresses.pop(subtask, None)
            else:
                self._addresses[subtask] = address

    @property
    def processes(self) -> frozenset[str]:
        """The processes of the hosts whose addresses are known."""
        with self._addresses_lock:
            return frozenset(address.process for address in self._addresses.values())

    def poll(self) -> Mapping[int, Status]:
        """Return the status of each subtask's host; hosts that do not answer are left out."""
        replies = self._ask(lambda _: Poll())
        return {subtask: reply for subtask, reply in replies.items() if isinstance(reply, Status)}

    def committed(self, version: int) -> None:
        """Tell all hosts that a version is committed: a host whose final cut belongs to it ends."""
        self._ask(lambda subtask: Committed(self._generation, version, self._cuts.get(subtask)))

    def announce(self, cuts: Mapping[int, str | None]) -> None:
        """Have each host told which cut of its subtask the newest manifest names, soon and without waiting for it."""
        self._cuts = cuts
        self._awake.set()

    def conclude(self) -> None:
        """Have the hosts wait no longer in the epoch under way."""
        self._ask(lambda _: Conclude(self._generation))

    def stop(self, version: int) -> None:
        """Tell all hosts to end, even while calls are under way. A host that is not reached ends with its lease.

        Parameters
        ----------
        version : int
            The version of the newest manifest.
        """
        self._ask(lambda subtask: Stop(self._generation, Fence(version, DRIVER), self._cuts.get(subtask)))

    def _renew(self) -> None:
        while True:
            self._awake.wait(self._pause_seconds)
            self._awake.clear()
            if self._stopped.is_set():
                return
            try:
                self._ask(lambda subtask: Renew(self._generation, self._cuts.get(subtask)))
            except BaseException:  # noqa: BLE001 - without this thread all hosts would end with their leases
                _log.exception("the leases of hosts were not renewed; the next try is in %s s", self._pause_seconds)

    def _ask(self, message_for: Callable[[int], Message]) -> dict[int, Reply]:
        """Send a message to the host of each subtask, then gather the replies that come within `_ANSWER_SECONDS`."""
        with self._asking:
            with self._addresses_lock:
                addresses = dict(self._addresses)
            self._keep_channels_of(addresses.values())
            silent = self._connect(addresses.values())
            self.warn_of_silent({subtask: address for subtask, address in addresses.items() if address in silent})
            try:
                return self._answers(addresses, message_for)
            except BaseException:
                # Unread replies would be mistaken for replies to the next question.
                self._keep_channels_of(())
                raise

    def _answers(self, addresses: Mapping[int, Address], message_for: Callable[[int], Message]) -> dict[int, Reply]:
        asked = {
            subtask: address for subtask, address in addresses.items() if self._is_sent(address, message_for(subtask))
        }
        until = time.monotonic() + _ANSWER_SECONDS
        replies = {subtask: self._answer(address, until) for subtask, address in asked.items()}
        self.warn_of_silent({subtask: address for subtask, address in asked.items() if replies[subtask] is None})
        return {subtask: reply for subtask, reply in replies.items() if reply is not None}

    def warn_of_silent(self, silent: Mapping[int, Address]) -> None:
        """Name hosts that are there and do not answer in the log, each of them once."""
        for subtask, address in silent.items():
            if address.process in self._told or not address.process:  # it has just begun, or ends
                continue
            self._told.add(address.process)
            _log.warning(
                "the host of subtask %d (process %s) has not answered for %g s: it is stopped, or its function blocks "
                "the event loop, and then the stack is in its log, %s; a host that is silent for %g s is replaced",
                subtask,
                address.process,
                _ANSWER_SECONDS,
                address.log,
                PATIENCE_SECONDS,
            )

    def _keep_channels_of(self, addresses: Iterable[Address]) -> None:
        """Forget the hosts that are not among these."""
        kept = set(addresses)
        for address in self._channels.keys() - kept:
            self._hang_up(address)
        for address in self._left_alone.keys() - kept:
            del self._left_alone[address]

    def _connect(self, addresses: Iterable[Address]) -> set[Address]:
        """Connect to the hosts that can be reached, and return those that are there and say nothing."""
        now = time.monotonic()
        silent: set[Address] = set()
        missing = [
            address
            for address in addresses
            if address not in self._channels and now >= self._left_alone.get(address, 0.0)
        ]
        if not missing:
            return silent
        with DaemonPool(min(len(missing), _CONNECTIONS_AT_ONCE), "keygroups connect") as pool:
            for address, found in zip(missing, pool.map(self._connected, missing), strict=True):
                if isinstance(found, SocketChannel):
                    self._channels[address] = found
                    continue
                self._left_alone[address] = time.monotonic() + _RETRY_SECONDS
                if isinstance(found.__cause__, TimeoutError):
                    silent.add(address)
        return silent

    def _connected(self, address: Address) -> SocketChannel | HostUnreachable:
        try:
            return connect(address, self._secret, _ANSWER_SECONDS)
        except HostUnreachable as unreachable:
            return unreachable

    def _is_sent(self, address: Address, message: Message) -> bool:
        channel = self._channels.get(address)
        if channel is None:
            return False
        try:
            channel.send(message)
        except HostLost:
            self._hang_up(address)
            return False
        return True

    def _answer(self, address: Address, until: float) -> Reply | None:
        """Wait for a reply. If it is late, hang up: otherwise it would be taken for the reply to the next message."""
        try:
            while (reply := self._channels[address].receive()) is None:
                if time.monotonic() > until:
                    break
        except HostLost:
            reply = None
        except Exception:  # noqa: BLE001 - the other hosts' replies are read in any case
            _log.exception("the reply of the host at %s cannot be read", address.path)
            reply = None
        if reply is None:
            self._hang_up(address)
        return reply

    def _hang_up(self, address: Address) -> None:
        channel = self._channels.pop(address, None)
        if channel is not None:
            channel.close()
