"""The outputs of the running epoch: in memory, and on disk beyond a bound."""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import IO, Any

import pyarrow as pa

from async_op.elements import Record, Watermark
from async_op.in_flight.waiters import Waiters
from async_op.threads.own_thread import on_own_thread
from keygroups.codec import pack, unpack

OUTPUT_SCHEMA = pa.schema(
    [
        pa.field("is_dead_letter", pa.bool_(), False),
        pa.field("value", pa.binary(), False, {b"keygroups.encoding": b"msgpack"}),
    ]
)

MEMORY_BYTES = 16 * 2**20
"""Outputs of an epoch that are kept in memory; with more, they are moved to a temporary file."""

EPOCH_BYTES = 256 * 2**20
EPOCH_OUTPUTS = 100_000
"""With this much, an epoch ends as soon as it can, because a sink gets it as one list."""


class EpochOutputs:
    """What one epoch gives to the sinks, in the order in which it came.

    The thread of the event loop calls `add`; after the cut, one other thread at a time reads. `spill` may run beside
    all of them.
    """

    def __init__(self) -> None:
        self._rows: list[tuple[bool, bytes]] = []
        self._row_bytes = 0
        self._pieces: list[list[tuple[bool, bytes]]] = []
        self._lock = threading.Lock()
        self._file: IO[bytes] | None = None
        self._stored: list[tuple[int, int]] = []
        """The offset and the size of each piece of the file, in bytes."""
        self._is_closed = False
        self.count = 0
        self.bytes = 0

    @property
    def is_large(self) -> bool:
        """Whether something should be moved to disk."""
        return bool(self._pieces)

    def add(self, value: Any, *, is_dead_letter: bool) -> None:
        """Add an output or a dead letter.

        Raises
        ------
        UnstorableValue
            The value has a type that cannot be stored.
        """
        packed = pack(value, "a dead letter" if is_dead_letter else "an output of the last step")
        self._rows.append((is_dead_letter, packed))
        self.count += 1
        self.bytes += len(packed)
        self._row_bytes += len(packed)
        if self._row_bytes > MEMORY_BYTES:
            self._pieces.append(self._rows)
            self._rows, self._row_bytes = [], 0

    def spill(self) -> None:
        """Move what is too much for the memory to a temporary file; blocks."""
        with self._lock:
            while self._pieces and not self._is_closed:
                if self._file is None:
                    self._file = tempfile.TemporaryFile(prefix="keygroups-outputs-")  # noqa: SIM115 - `close` does
                packed = _packed_piece(self._pieces[0])
                offset = self._file.seek(0, os.SEEK_END)
                self._file.write(packed)
                self._stored.append((offset, len(packed)))
                del self._pieces[0]

    def tables(self) -> Iterator[pa.Table]:
        """Yield all rows, in pieces; blocks. Nothing is locked between two of them."""
        with self._lock:
            stored, rows = list(self._stored), [*self._pieces, self._rows]
        for offset, size in stored:
            yield self._stored_table(offset, size)
        for piece in rows:
            yield _table_of(piece)

    def table(self) -> pa.Table:
        """Return all rows as one table; blocks."""
        return pa.concat_tables(self.tables())

    def close(self) -> None:
        """Drop the rows, and remove the temporary file."""
        with self._lock:
            self._is_closed = True
            if self._file is not None:
                self._file.close()

    def _stored_table(self, offset: int, size: int) -> pa.Table:
        with self._lock:
            assert self._file is not None, "nothing has been stored"
            self._file.seek(offset)
            packed = self._file.read(size)
        with pa.ipc.open_stream(packed) as reader:
            return reader.read_all()


class Collector:
    """Collects the outputs of the last step and all dead letters, epoch by epoch; operators call it with what leaves.

    Only the thread of the event loop may call it.

    Attributes
    ----------
    changed : Waiters
        Woken when the epoch is full, and when a new one begins.
    outputs, dead_letters : int
        How many have come in this run.
    """

    def __init__(self) -> None:
        self.epoch = EpochOutputs()
        self.changed = Waiters(lambda: None)
        self.outputs = self.dead_letters = 0
        self._senders: list[Callable[[], None]] = []

    def __call__(self, output: Record | Watermark) -> None:
        """Take an output."""
        if not isinstance(output, Watermark):
            self.outputs += 1
            self._add(output.value, is_dead_letter=False)

    def bury(self, letter: dict[str, Any]) -> None:
        """Take a dead letter."""
        self.dead_letters += 1
        self._add(letter, is_dead_letter=True)

    async def spill(self) -> None:
        """Move outputs to disk when there are too many for the memory, for ever."""
        while True:
            await self.changed.wait_until(lambda: self.epoch.is_large)
            await on_own_thread(self.epoch.spill)

    def cut(self) -> EpochOutputs:
        """Return the outputs since the last cut, and begin a new epoch."""
        done, self.epoch = self.epoch, EpochOutputs()
        self._tell()
        return done

    def on_change(self, sender: Callable[[], None]) -> None:
        """Have something called whenever `has_room` may have changed."""
        self._senders.append(sender)

    def forget_senders(self) -> None:
        """Call nothing any more: the operators are closed."""
        self._senders.clear()

    @property
    def has_room(self) -> bool:
        """Whether the epoch may go on."""
        return self.epoch.count < EPOCH_OUTPUTS and self.epoch.bytes < EPOCH_BYTES

    async def room(self) -> None:
        """Wait until the epoch may go on, or a new one has begun."""
        await self.changed.wait_until(lambda: self.has_room)

    def _add(self, value: Any, *, is_dead_letter: bool) -> None:
        self.epoch.add(value, is_dead_letter=is_dead_letter)
        if self.epoch.is_large or not self.has_room:
            self._tell()

    def _tell(self) -> None:
        for sender in self._senders:
            sender()
        self.changed.wake()


def values_in(tables: Iterable[pa.Table]) -> tuple[list[Any], list[Any]]:
    """Return the outputs and the dead letters in stored rows."""
    found: tuple[list[Any], list[Any]] = [], []
    for table in tables:
        columns = table.column("is_dead_letter").to_pylist(), table.column("value").to_pylist()
        for is_dead_letter, value in zip(*columns, strict=True):
            found[is_dead_letter].append(unpack(value))
    return found


def _packed_piece(rows: list[tuple[bool, bytes]]) -> bytes:
    stream = pa.BufferOutputStream()
    with pa.ipc.new_stream(stream, OUTPUT_SCHEMA) as writer:
        writer.write_table(_table_of(rows))
    return bytes(stream.getvalue())


def _table_of(rows: list[tuple[bool, bytes]]) -> pa.Table:
    kinds = pa.array([kind for kind, _ in rows], pa.bool_())
    return pa.Table.from_arrays([kinds, pa.array([value for _, value in rows], pa.binary())], schema=OUTPUT_SCHEMA)
