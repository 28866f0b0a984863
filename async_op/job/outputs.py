"""The outputs of the running epoch: in memory, and on disk beyond a bound."""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import IO, Any, TypeAlias

import numpy as np
import pyarrow as pa

from async_op.dead_letters import DeadLetter, row_of
from async_op.in_flight.in_flight import ValueOutput
from async_op.in_flight.waiters import Waiters
from async_op.threads.own_thread import on_own_thread
from keygroups.codec import pack_all, unpack_all
from snapshots.temporary_files import full_disk_named

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

RUN, RUN_BYTES = 1024, 2**20
"""At most so many outputs, or about so many bytes of them, are packed together: one by one takes thrice as long."""

Rows: TypeAlias = tuple[bool, bytes, np.ndarray]
"""Whether they are dead letters, packed outputs or dead letters one behind the other, and how long each of them is.

To keep them as single objects would take several times the memory, and as much time again when they are written.
"""


class EpochOutputs:
    """What one epoch gives to the sinks, in the order in which it came.

    The thread of the event loop calls `add`; after the cut, one other thread at a time reads. `spill` may run beside
    all of them.
    """

    def __init__(self) -> None:
        self._rows: list[Rows] = []
        self._row_bytes = 0
        self._pieces: list[list[Rows]] = []
        self._tables: list[pa.Table] | None = None
        """The rows in memory, once they were read."""
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

    def add(self, values: Sequence[Any], *, are_dead_letters: bool) -> None:
        """Add outputs or dead letters.

        Raises
        ------
        UnstorableValue
            A value has a type that cannot be stored.
        """
        # No Arrow here: its first array imports pandas, which would block the event loop.
        data, lengths = pack_all(values, "a dead letter" if are_dead_letters else "an output of the last step")
        self.count += len(lengths)
        self.bytes += len(data)
        for part, of_part in _parts(data, lengths):
            if self._row_bytes + len(part) > MEMORY_BYTES:
                self._end_piece()
            self._rows.append((are_dead_letters, part, of_part))
            self._row_bytes += len(part)
        if self._row_bytes > MEMORY_BYTES:
            self._end_piece()

    def spill(self) -> None:
        """Move what is too much for the memory to a temporary file; blocks."""
        with self._lock, full_disk_named():
            while self._pieces and not self._is_closed:
                if self._file is None:
                    self._file = tempfile.TemporaryFile(prefix="keygroups-outputs-")  # noqa: SIM115 - `close` does
                packed = _packed_piece(self._pieces[0])
                offset = self._file.seek(0, os.SEEK_END)
                self._file.write(packed)
                self._stored.append((offset, len(packed)))
                del self._pieces[0]

    def tables(self) -> Iterator[pa.Table]:
        """Yield all rows, in pieces; blocks. Nothing is locked between two of them, and no row is added any more."""
        with self._lock:
            if self._tables is None:
                self._tables = [_table_of(piece) for piece in (*self._pieces, self._rows)]
                self._pieces, self._rows = [], []
            stored, tables = list(self._stored), self._tables
        for offset, size in stored:
            yield self._stored_table(offset, size)
        yield from tables

    def table(self) -> pa.Table:
        """Return all rows as one table; blocks."""
        return pa.concat_tables(self.tables())

    def close(self) -> None:
        """Drop the rows, and remove the temporary file."""
        with self._lock:
            self._is_closed = True
            if self._file is not None:
                self._file.close()

    def _end_piece(self) -> None:
        if self._rows:
            self._pieces.append(self._rows)
        self._rows, self._row_bytes = [], 0

    def _stored_table(self, offset: int, size: int) -> pa.Table:
        with self._lock:
            assert self._file is not None, "nothing has been stored"
            self._file.seek(offset)
            packed = self._file.read(size)
        with pa.ipc.open_stream(packed) as reader:
            return reader.read_all()


class Collector(ValueOutput):
    """Collects the outputs of the last step and all dead letters, epoch by epoch; operators call it with what leaves.

    Only the thread of the event loop may call it.

    Parameters
    ----------
    processes : int
        How many collectors share the bounds of an epoch.

    Attributes
    ----------
    changed : Waiters
        Woken when the epoch is full, and when a new one begins.
    dead_letters : int
        How many dead letters have come in this run.
    """

    def __init__(self, processes: int = 1) -> None:
        self.epoch = EpochOutputs()
        self.changed = Waiters()
        self._processes = processes
        self.dead_letters = self._packed = 0
        self._run: list[Any] = []
        self._run_max = 1
        self._senders: list[Callable[[], None]] = []

    def extend(self, values: Iterable[Any], /) -> None:
        """Take outputs, which are packed many at a time; no function can change them any more."""
        run = self._run
        run += values
        if len(run) >= self._run_max:
            self._end_run()

    @property
    def outputs(self) -> int:
        """How many outputs have come in this run."""
        return self._packed + len(self._run)

    def take_letter(self, letter: DeadLetter, step: str) -> None:
        """Take a dead letter of a step."""
        self.dead_letters += 1
        self._add([row_of(letter, step)], are_dead_letters=True)

    async def spill(self) -> None:
        """Move outputs to disk when there are too many for the memory, for ever."""
        while True:
            await self.changed.wait_until(lambda: self.epoch.is_large)
            await on_own_thread(self.epoch.spill)

    def cut(self) -> EpochOutputs:
        """Return the outputs since the last cut, and begin a new epoch."""
        self._end_run()
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
        count, size = self._processes * (self.epoch.count + len(self._run)), self._processes * self.epoch.bytes
        return count < EPOCH_OUTPUTS and size < EPOCH_BYTES

    async def room(self) -> None:
        """Wait until the epoch may go on, or a new one has begun."""
        await self.changed.wait_until(lambda: self.has_room)

    def _end_run(self) -> None:
        run, self._run = self._run, []
        if not run:
            return
        self._packed += len(run)
        before = self.epoch.bytes
        self._add(run, are_dead_letters=False)
        fitting = RUN_BYTES * len(run) // (self.epoch.bytes - before)
        self._run_max = max(
            1, min(RUN, fitting, 4 * self._run_max, EPOCH_OUTPUTS // self._processes - self.epoch.count)
        )

    def _add(self, values: list[Any], *, are_dead_letters: bool) -> None:
        self.epoch.add(values, are_dead_letters=are_dead_letters)
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
        for batch in table.to_batches():
            packed, are_letters = batch.column(1), batch.column(0).to_numpy(zero_copy_only=False)
            if not are_letters.any():  # the usual case
                found[0].extend(_unpacked(packed))
                continue
            for values, chosen in zip(found, (~are_letters, are_letters), strict=True):
                values.extend(_unpacked(packed.filter(pa.array(chosen))))
    return found


def _unpacked(packed: pa.BinaryArray) -> list[Any]:
    """Return the values of packed rows; they stand in a row in the array's memory."""
    if not len(packed):
        return []
    _, offsets, data = packed.buffers()
    first, last = np.frombuffer(offsets, np.int32)[[packed.offset, packed.offset + len(packed)]].tolist()
    return unpack_all(data[first:last], len(packed))


def _parts(data: bytes, lengths: np.ndarray) -> Iterator[tuple[bytes, np.ndarray]]:
    """Divide packed values, so that a piece has no more than `MEMORY_BYTES` unless a single value has."""
    if len(data) <= MEMORY_BYTES:
        yield data, lengths
        return
    bounds = np.concatenate([[0], np.cumsum(lengths)])
    start = 0
    while start < len(lengths):
        end = max(start + 1, int(bounds.searchsorted(bounds[start] + MEMORY_BYTES, "right")) - 1)
        yield data[bounds[start] : bounds[end]], lengths[start:end]
        start = end


def _packed_piece(rows: list[Rows]) -> bytes:
    stream = pa.BufferOutputStream()
    with pa.ipc.new_stream(stream, OUTPUT_SCHEMA) as writer:
        writer.write_table(_table_of(rows))
    return bytes(stream.getvalue())


def _table_of(rows: list[Rows]) -> pa.Table:
    kinds = np.repeat([kind for kind, _, _ in rows], [len(lengths) for _, _, lengths in rows]).astype(bool)
    ends = np.cumsum(np.concatenate([np.zeros(1, np.int64), *(lengths for _, _, lengths in rows)]))
    offsets = pa.array(ends).cast(pa.int32()).buffers()[1]  # `_parts` and the limit of a value keep them in 32 bits
    data = pa.py_buffer(b"".join(data for _, data, _ in rows))
    values = pa.Array.from_buffers(pa.binary(), len(kinds), [None, offsets, data])
    return pa.Table.from_arrays([pa.array(kinds), values], schema=OUTPUT_SCHEMA)
