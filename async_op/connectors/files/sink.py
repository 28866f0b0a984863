"""A folder with one file for each epoch."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any

from async_op.connectors.connector_threads import OwnThreads
from async_op.connectors.errors import EpochsBehind, TargetMissing, TargetTaken, UnwritableValue
from async_op.connectors.files.atomic_write import FileFolder
from async_op.connectors.files.encoding import FORMATS, encode
from async_op.connectors.sink import SINK_RETRY, ShippedSink, Sink
from async_op.dead_letters import OnError
from async_op.letter_rows import LETTER_SCHEMA
from async_op.retry import RetryPolicy
from async_op.threads.own_thread import on_own_thread
from keygroups.arguments import check_choice, check_integer, check_location
from keygroups.errors import ConfigError
from keygroups.representation import representation

if TYPE_CHECKING:
    from async_op.connectors.epoch_rows import SinkRows

_LINEAGE = ".lineage"
"""The file that says whose epochs are in the folder."""
_ANEW = "give its sink another folder, or move the files of the earlier run away"


class FileSink(ShippedSink):
    """Writes each epoch into a file of its own, named by the epoch; an epoch that comes again replaces its file.

    Readers see a file whole or not at all, and after `write` it survives a crash of the machine. An epoch that is
    interrupted leaves no file but one in the folder ``.unfinished``, which is removed with the next epoch.
    The file ``.lineage`` says whose epochs they are: another job's are `TargetTaken`.

    Parameters
    ----------
    folder : str or path
        A path or an fsspec URI: local, in memory, or an object store that snapshots may be in, too. Each job has a
        folder of its own, because two jobs would replace each other's epochs.
    format : {"json", "csv", "parquet"}
        JSON with one output in each line; CSV with a header, whose columns come from the epoch's outputs; or
        Parquet. For the last two, outputs are dicts.
    schema : pyarrow.Schema, optional
        The columns of Parquet files. Without it they come from the outputs, so they may differ from epoch to epoch.
    storage_options : dict, optional
        Passed to the fsspec filesystem.

    Raises
    ------
    ConfigError
        An argument is invalid.

    Notes
    -----
    An output that cannot be written raises `UnwritableValue`, and a folder that may not be read or written
    `SinkFolderRefused`. An epoch that is older than the newest file is a repeat,
    so its file is there, with the same content. If not, the job has started from scratch in a folder with files of an
    earlier run, and the sink raises `EpochsBehind` before it writes among them.

    Examples
    --------
    >>> import asyncio, tempfile, pathlib
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     sink = FileSink(folder, "json")
    ...     asyncio.run(sink.write([{"n": 1}], epoch=7))
    ...     [path.name for path in pathlib.Path(folder).glob("*.jsonl")]
    ['epoch-00000000000000000007.jsonl']
    """

    def __init__(
        self,
        folder: str | PathLike[str],
        format: str,
        *,
        schema: Any = None,
        storage_options: dict[str, Any] | None = None,
        on_error: OnError = "fail",
        retry: RetryPolicy | None = SINK_RETRY,
        dead_letters: Sink[Any] | None = None,
    ) -> None:
        super().__init__(on_error=on_error, retry=retry, dead_letters=dead_letters)
        check_choice("format", format, tuple(FORMATS))
        if schema is not None and format != "parquet":
            raise ConfigError("schema", schema, "only Parquet files have one; leave it out")
        self._format = format
        self._schema = schema
        location = check_location("folder", folder, reason="name a folder of the job")
        self._files = FileFolder(location, dict(storage_options or {}))
        self._threads: OwnThreads | None = None
        self._newest: int | None = None

    def __repr__(self) -> str:
        return representation(self, {"folder": self._files.uri, "format": self._format})

    @property
    def place_of_notes(self) -> tuple[str, ...]:
        """The folder and the format, of which the names of files are made."""
        return self._files.uri.rstrip("/"), self._format

    def for_dead_letters(self) -> FileSink:
        """Return a sink whose Parquet files all have the columns of dead letters, unless a schema was passed."""
        if self._schema is not None or self._format != "parquet":
            return self
        letters = copy.copy(self)
        letters._schema = LETTER_SCHEMA
        return letters

    async def open(self) -> None:
        """Get ready."""
        self._threads = self._threads or OwnThreads("keygroups files", 1)

    async def write(self, values: Sequence[Any], epoch: int) -> None:
        """Write the file of an epoch, or replace it."""
        number = check_integer("epoch", epoch, 0, reason="epochs are numbered")
        if self._threads is not None:
            return await self._threads.run(lambda: self._write(values, number))
        await self.open()
        try:
            return await self.write(values, epoch)
        finally:
            await self.close()

    async def refused(self, values: Sequence[Any]) -> list[UnwritableValue]:
        """Return an error for every output that does not fit into the format; nothing is written."""
        return await on_own_thread(self._refused, values)

    def write_rows(self, rows: SinkRows, epoch: int) -> None:
        """Write the file of an epoch of a pipeline on Spark; all of its rows are in memory. Blocks."""
        self._write(list(rows.dicts()), check_integer("epoch", epoch, 0, reason="epochs are numbered"))

    def refused_rows(self, rows: SinkRows) -> list[UnwritableValue]:
        """Return an error for every row that does not fit into the format; blocks."""
        return self._refused(rows.dicts())

    async def close(self) -> None:
        """End the thread."""
        self._newest = None
        if self._threads is not None:
            threads, self._threads = self._threads, None
            await threads.close()

    def _write(self, values: Sequence[Any], epoch: int) -> None:
        name, data = self._name(epoch), self._encoded(values)
        if self.was_written and not self._files.exists():
            raise TargetMissing(self._files.uri, was_there=True)
        newest = self._newest_epoch() if self._newest is None else self._newest
        if newest and self.lineage and not self.was_written and not self._files.has(_LINEAGE, self.lineage.encode()):
            raise TargetTaken(self._files.uri, self._files.uri)
        if epoch >= newest:
            if self.lineage and not self.was_written:
                self._files.replace(_LINEAGE, self.lineage.encode())
            self._files.replace(name, data)
            self._newest = epoch
            self.was_written = True
        elif not self._files.has(name, data):
            raise EpochsBehind(self._files.uri, epoch, newest, _ANEW)

    def _encoded(self, values: Sequence[Any]) -> bytes:
        try:
            return encode(values, self._format, self._schema)
        except UnwritableValue as error:
            found = error
        for first in self._refused(values):
            raise first
        raise found

    def _refused(self, values: Iterable[Any]) -> list[UnwritableValue]:
        """Return the errors of the outputs that no file can have; types that differ are the fault of none of them."""
        found = []
        for index, value in enumerate(values):
            try:
                encode([value], self._format, self._schema)
            except UnwritableValue as error:
                error.index, error.target = index, self._files.uri
                found.append(error)
        return found

    def _newest_epoch(self) -> int:
        ours = re.compile(rf"epoch-([0-9]{{20}})\.{FORMATS[self._format]}")
        return max((int(found[1]) for found in map(ours.fullmatch, self._files.names()) if found), default=0)

    def _name(self, epoch: int) -> str:
        return f"epoch-{epoch:020}.{FORMATS[self._format]}"
