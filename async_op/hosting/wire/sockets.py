"""A feeder's channel over a socket: sending never blocks its thread, and a second thread shows signs of life."""

from __future__ import annotations

import hmac
import secrets
import select
import socket
import threading
import time
from collections import deque
from pathlib import Path
from typing import Literal

from async_op.hosting.diagnostics import how_ended, what_blocks
from async_op.hosting.errors import HostFailed, HostLost, HostSilent, HostUnreachable, MessageTooLarge, NotOurs
from async_op.hosting.feeder import Waiting
from async_op.hosting.lease import PATIENCE_SECONDS
from async_op.hosting.messages import Address, Failed, Message, Reply
from async_op.hosting.wire import frames
from async_op.hosting.wire.socket_paths import bindable
from async_op.threads.wait_strategies import WaitSituation, WaitStrategies
from async_op.threads.waits import Waits
from keygroups.safe_text import described

TICK_SECONDS = 0.1
"""How long a feeder waits for a reply before it may show a sign of life."""

CONNECT_SECONDS = 5.0

_READ_BYTES = 1 << 18


class SocketChannel:
    """Talks to a host in another process. One thread may call it; a second one of its own shows signs of life.

    Parameters
    ----------
    connected : socket.socket
        A connection to a host that has proved that it knows the secret.
    address : Address
        The host's address.
    patience_seconds : float
        A host that is silent for this long is taken for dead.
    waits : Waits, optional
        How the thread waits for replies.

    Attributes
    ----------
    silent_seconds : float
        For how long the thread has waited in vain for a sign of life.
    """

    def __init__(
        self,
        connected: socket.socket,
        address: Address,
        patience_seconds: float = PATIENCE_SECONDS,
        waits: Waits | None = None,
    ) -> None:
        connected.setblocking(False)
        self._socket = connected
        self._address = address
        self._patience_seconds = patience_seconds
        self._waits = waits or Waits(WaitStrategies())
        self._replies = deque[Reply]()
        self._received = bytearray()
        self._unsent = bytearray()
        self._lock = threading.Lock()  # guards the unsent bytes and the order of sending
        self._heard_at = time.monotonic()
        self.silent_seconds = 0.0
        self._poll = select.poll()
        self._closed = threading.Event()
        self._beating = threading.Thread(target=self._beat, name="keygroups beat", daemon=True)
        self._beating.start()

    def send(self, message: Message) -> None:
        """Send a message; what the socket does not take now goes out with the next `receive`."""
        try:
            self._send(frames.encode(message))
        except OSError as error:
            raise self._lost(error) from error

    def receive(self, situation: WaitSituation = WaitSituation.CONSUME) -> Reply | None:
        """Return the next reply, or None after `TICK_SECONDS`."""
        if not self._replies:
            try:
                self._waits.until(self._has_reply, self, lambda: situation, TICK_SECONDS)
            except OSError as error:
                raise self._lost(error) from error
        return self._replies.popleft() if self._replies else None

    def close(self) -> None:
        """Hang up."""
        self._closed.set()
        self._beating.join()
        self._socket.close()

    def wait(self, timeout: float, /) -> None:
        """Wait until the host sends something, at most so many seconds; for wait strategies."""
        with self._lock:
            events = select.POLLIN | (select.POLLOUT if self._unsent else 0)
        self._poll.register(self._socket, events)
        ready = self._poll.poll(1000 * timeout)
        if any(event & select.POLLOUT for _, event in ready):
            self._send(b"")
        if any(event & ~select.POLLOUT for _, event in ready):
            self._read()
        else:
            self._check_silence()

    def _check_silence(self) -> None:
        self.silent_seconds = time.monotonic() - self._heard_at
        if self.silent_seconds > self._patience_seconds:
            at = what_blocks(self._address)
            raise HostSilent(f"has shown no sign of life for {self.silent_seconds:.0f} s{at}", self._address.log)

    def _has_reply(self) -> bool:
        if not self._replies:
            self.wait(0.0)
        return bool(self._replies)

    def _read(self) -> None:
        data = self._socket.recv(_READ_BYTES)
        if not data:
            raise HostLost(f"has ended{how_ended(self._address)}", self._address.log)
        self._heard_at, self.silent_seconds = time.monotonic(), 0.0
        self._received += data
        while len(self._received) >= frames.HEADER_BYTES:
            size, kind = self._size_and_kind()
            end = frames.HEADER_BYTES + size
            if len(self._received) < end:
                return
            payload = bytes(self._received[frames.HEADER_BYTES : end])
            del self._received[:end]
            if kind != frames.ALIVE:
                self._replies.append(_reply(kind, payload))

    def _size_and_kind(self) -> tuple[int, int]:
        try:
            return frames.size_and_kind(bytes(self._received[: frames.HEADER_BYTES]))
        except MessageTooLarge as error:
            # No host sends one: these bytes are no header, and the next header cannot be found.
            raise HostLost(f"has sent what is no reply ({error.size_bytes} bytes)", self._address.log) from error

    def _send(self, data: bytes) -> None:
        with self._lock:
            self._unsent += data
            while self._unsent:
                try:
                    sent = self._socket.send(self._unsent)
                except BlockingIOError:
                    return
                del self._unsent[:sent]

    def _beat(self) -> None:
        """Show signs of life, also while the feeding thread waits for rows."""
        while not self._closed.wait(frames.BEAT_SECONDS):
            try:
                self._send(frames.alive())
            except OSError:
                return  # the feeding thread meets the same error, and can handle it

    def _lost(self, error: OSError) -> HostLost:
        if isinstance(error, HostLost):
            return error
        return HostLost(f"has ended{how_ended(self._address) or f' ({error})'}", self._address.log)


def connect(
    address: Address, secret: bytes, patience_seconds: float = PATIENCE_SECONDS, waits: Waits | None = None
) -> SocketChannel:
    """Do what `connecting` does, and block the thread meanwhile."""
    steps = connecting(address, secret, patience_seconds, waits)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            channel: SocketChannel = end.value
            return channel


def connecting(
    address: Address, secret: bytes, patience_seconds: float = PATIENCE_SECONDS, waits: Waits | None = None
) -> Waiting[SocketChannel]:
    """Connect to a host by its Unix socket or else by TCP, and have it prove that it knows the secret.

    Raises
    ------
    HostUnreachable
        No host answers, or the one that answers is not of this run. One that is there and says nothing is its cause,
        a `TimeoutError`.
    """
    reasons, silence = [], None
    for open_socket in (_open_unix, _open_tcp):
        try:
            connected = open_socket(address)
        except OSError as error:
            reasons.append(str(error))
            continue
        try:
            # A function may block the host's loop for this long, as it may during an epoch.
            connected.settimeout(patience_seconds)
            yield from _until_greeted(connected, patience_seconds)
            _prove(connected, secret)
        except (OSError, NotOurs) as error:
            connected.close()
            reasons.append(str(error))
            silence = error if isinstance(error, TimeoutError) else silence
        except GeneratorExit:  # the task was cancelled
            connected.close()
            raise
        else:
            return SocketChannel(connected, address, patience_seconds, waits)
    raise HostUnreachable("; ".join(reasons)) from silence


def _until_greeted(connected: socket.socket, patience_seconds: float) -> Waiting[None]:
    """Wait for the host's first bytes."""
    until, poll = time.monotonic() + patience_seconds, select.poll()
    poll.register(connected, select.POLLIN)
    while not poll.poll(1000 * min(TICK_SECONDS, patience_seconds)):
        if time.monotonic() > until:
            raise TimeoutError("timed out")
        yield


def _reply(kind: int, payload: bytes) -> Reply:
    try:
        reply: Reply = frames.decode(kind, payload)
    except Exception as error:  # noqa: BLE001 - a user's class may raise anything when it is unpickled, or not be here
        return Failed(HostFailed(f"its reply cannot be read here ({described(error)})"))
    return reply


def _open_unix(address: Address) -> socket.socket:
    connected = socket.socket(socket.AF_UNIX)
    try:
        connected.settimeout(CONNECT_SECONDS)
        with bindable(Path(address.path)) as path:
            connected.connect(path)
    except OSError:
        connected.close()
        raise
    return connected


def _open_tcp(address: Address) -> socket.socket:
    if not address.port:
        raise ConnectionRefusedError("it does not listen on TCP")
    connected = socket.create_connection((address.host, address.port), CONNECT_SECONDS)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connected


def _prove(connected: socket.socket, secret: bytes) -> None:
    greeting = _read_exactly(connected, len(frames.MAGIC) + NONCE_BYTES)
    if not greeting.startswith(frames.MAGIC):
        raise NotOurs("it is not a host")
    host_nonce, feeder_nonce = greeting[len(frames.MAGIC) :], new_nonce()
    connected.sendall(feeder_nonce + proof_of(secret, "feeder", host_nonce, feeder_nonce))
    if not is_proof(_read_exactly(connected, PROOF_BYTES), secret, "host", host_nonce, feeder_nonce):
        raise NotOurs("the host's proof is wrong")


def _read_exactly(connected: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = connected.recv(size - len(data))
        if not part:
            raise NotOurs("it closed the connection")
        data += part
    return data


NONCE_BYTES = 32
PROOF_BYTES = 32

Side = Literal["host", "feeder"]


def new_secret() -> bytes:
    """Return the secret of a new run."""
    return secrets.token_bytes(32)


def new_nonce() -> bytes:
    """Return bytes that one side asks the other to sign; they never repeat, so that no proof can be used again."""
    return secrets.token_bytes(NONCE_BYTES)


def proof_of(secret: bytes, side: Side, host_nonce: bytes, feeder_nonce: bytes) -> bytes:
    """Sign both nonces; the side is signed, too, so that a proof cannot be sent back as the other side's own."""
    return hmac.digest(secret, side.encode() + host_nonce + feeder_nonce, "sha256")


def is_proof(proof: bytes, secret: bytes, side: Side, host_nonce: bytes, feeder_nonce: bytes) -> bool:
    """Tell whether a proof shows that the other side knows the secret."""
    return hmac.compare_digest(proof, proof_of(secret, side, host_nonce, feeder_nonce))
