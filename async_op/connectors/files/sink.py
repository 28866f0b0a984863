"""A folder with one file for each epoch."""

from __future__ import annotations

import copy
import os
import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from async_op.connectors.arrow_output import check_schema, names_of
from async_op.connectors.errors import EpochsBehind, SinkFolderRefused, TargetMissing, TargetTaken, UnwritableValue
from async_op.connectors.files.parquet import parquet_of
from async_op.connectors.files.text import check_delimiter
from async_op.connectors.sink import SINK_RETRY, ShippedSink, Sink
from async_op.dead_letters import LETTER_SCHEMA, OnError
from async_op.retry import RetryPolicy
from async_op.threads.own_thread import on_own_thread
from keygroups.arguments import check_choice, check_integer, check_location
from keygroups.context_managers import contextmanager
from keygroups.errors import ConfigError
from keygroups.representation import representation
from keygroups.values.scalars import Refusal
from keygroups.values.texts import cell_of, csv_line, half_of_a_pair, json_of, line_of
from snapshots.filesystem import Folder, LocalFolder, ObjectFolder, open_folder, options_of, redacted
from snapshots.filesystem.errors import StorageRefused, UnsafeFilesystem

if TYPE_CHECKING:
    from async_op.connectors.epoch_rows import SinkRows

_ANEW = "give its sink another folder, or move the files of the earlier run away"

_UNFINISHED = ".unfinished"

FORMATS = {"json": "jsonl", "csv": "csv", "parquet": "parquet", "lines": "txt"}
"""The formats, and how the names of their files end."""


class FileSink(ShippedSink):
    """Writes each epoch into a file of its own, named by the epoch; an epoch that comes again replaces its file.

    Readers see a file whole or not at all, and after `write` it survives a crash of the machine. An epoch that is
    interrupted leaves no file but one in the folder ``.unfinished``, which is removed with the next epoch.
    A hidden file, such as ``.lineage-jsonl``, says whose epochs they are: another job is refused with `TargetTaken`.

    Parameters
    ----------
    folder : str or path
        A path or an fsspec URI: local, in memory, or an object store that snapshots may be in, too. Each job has a
        folder of its own, because two jobs would replace each other's epochs.
    format : {"json", "csv", "parquet", "lines"}
        JSON with one output in each line; CSV with a header, whose columns come from the epoch's outputs; Parquet; or
        lines of text. For CSV and Parquet outputs are dicts, for lines they are text; on Spark, rows of one column.
    delimiter : str
        The character between two fields of CSV.
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
        delimiter: str = ",",
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
        check_delimiter(delimiter, format)
        self._format, self._delimiter = format, delimiter
        check_schema(schema)
        self._schema = schema
        location = check_location("folder", folder, reason="name a folder of the job")
        self._files = FileFolder(location, options_of(storage_options))
        self._newest: int | None = None
        self._is_claimed = False

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what was found in the folder, too."""
        files = FileFolder(self._files.location, self._files.storage_options)
        return super().__getstate__() | {"_files": files, "_newest": None, "_is_claimed": False}

    def __repr__(self) -> str:
        return representation(self, {"folder": self._files.uri, "format": self._format})

    @property
    def place_of_notes(self) -> tuple[str, ...]:
        """The folder and the format, of which the names of files are made."""
        return self._files.uri.rstrip("/"), self._format

    def for_dead_letters(self) -> FileSink:
        """Return a sink for the fields of dead letters: with a schema for Parquet without one, and JSON for lines."""
        letters = copy.copy(self)
        if self._format == "lines":
            letters._format = "json"
        elif self._format == "parquet" and self._schema is None:
            letters._schema = LETTER_SCHEMA
        return letters

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

    def check_target(self) -> None:
        """Raise an error if the folder is not the one that this job has written to; blocks."""
        if self.was_written and not self._files.exists():
            raise TargetMissing(self._files.uri, was_there=True)
        if self._newest is None:
            newest = self._newest_epoch()
            self._check_owner(has_epochs=newest > 0)
            self._newest = newest
        # A reader may have moved files away, so a folder is never behind.
        self.check_ahead(self._files.uri, self._newest, "remove the files of the later epochs")

    def _check_owner(self, *, has_epochs: bool) -> None:
        owner = self._files.content(self._owner_file) if self.lineage else None
        self._is_claimed = owner == self.lineage.encode()
        is_unclaimed = owner is None and (self.was_written or not has_epochs)
        if self.lineage and not self._is_claimed and not is_unclaimed:
            raise self._taken()

    def _claim(self) -> None:
        """Note whose epochs are in the folder. Of two jobs that have found it empty, the second is refused."""
        if self.lineage and not self._is_claimed:
            if not self._files.has_or_creates(self._owner_file, self.lineage.encode()):
                raise self._taken()
            self._is_claimed = True

    def _taken(self) -> TargetTaken:
        advice = f"give the sink a folder of its own, or remove {self._owner_file} from this one if that job is gone"
        return TargetTaken(self._files.uri, self._files.uri, advice)

    def disconnect(self) -> None:
        """Forget what was found in the folder; the next epoch looks again."""
        self._newest, self._is_claimed = None, False

    def write_rows(self, rows: SinkRows, epoch: int) -> None:
        """Write the file of an epoch of a pipeline on Spark; all of its rows are in memory. Blocks."""
        self._write(self._outputs_of(rows), check_integer("epoch", epoch, 0, reason="epochs are numbered"))

    def refused_rows(self, rows: SinkRows) -> list[UnwritableValue]:
        """Return an error for every row that does not fit into the format; blocks."""
        return self._refused(self._outputs_of(rows))

    def _outputs_of(self, rows: SinkRows) -> list[Any]:
        """Return rows as outputs: for lines, the text of their one column, as Spark writes text."""
        if self._format == "lines" and len(rows.names()) == 1:
            return [text for row in rows.dicts() for text in row.values()]
        return list(rows.dicts())

    def _write(self, values: Sequence[Any], epoch: int) -> None:
        name, data = self._name(epoch), self._encoded(values)
        self.check_target()
        newest = self._newest or 0
        if epoch >= newest:
            self._claim()
            self.note_tried(epoch)
            self._files.replace(name, data)
            self._newest = epoch
            self.was_written = True
        elif self._files.content(name) != data:
            raise EpochsBehind(self._files.uri, epoch, newest, _ANEW)

    def _encoded(self, values: Sequence[Any]) -> bytes:
        try:
            return encode(values, self._format, self._schema, self._delimiter)
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
                encode([value], self._format, self._schema, self._delimiter)
            except UnwritableValue as error:
                error.index, error.target = index, self._files.uri
                found.append(error)
        return found

    def _newest_epoch(self) -> int:
        ours = re.compile(rf"epoch-([0-9]{{20}})\.{FORMATS[self._format]}")
        return max((int(found[1]) for found in map(ours.fullmatch, self._files.names()) if found), default=0)

    @property
    def _owner_file(self) -> str:
        """The file that says whose epochs are in the folder. Its name does not end as theirs do, so readers skip it."""
        return f".lineage-{FORMATS[self._format]}"

    def _name(self, epoch: int) -> str:
        return f"epoch-{epoch:020}.{FORMATS[self._format]}"


class FileFolder:
    """A folder whose files are replaced as a whole. Its methods block, and one thread at a time may call them.

    Object stores put whole objects. On POSIX filesystems a file is written elsewhere and renamed, with `fsync` for the
    file and for its name.
    """

    def __init__(self, location: str, storage_options: dict[str, Any]) -> None:
        self.location = location
        self.storage_options = storage_options
        self._opened: Folder | None = None

    @property
    def uri(self) -> str:
        """The folder, without secrets."""
        return redacted(self.location)

    def replace(self, name: str, data: bytes) -> None:
        """Write or replace a file; readers see the old one or the new one."""
        with self._asked() as folder:
            if isinstance(folder, LocalFolder):
                _replace_durably(folder, name, data)
            else:
                folder.replace(name, data)

    def exists(self) -> bool:
        """Return whether the folder is there; in an object store, which has no folders, always."""
        with self._asked() as folder:
            return not isinstance(folder, LocalFolder) or Path(folder.path("")).is_dir()

    def names(self) -> list[str]:
        """List the files; none if there is no folder."""
        with self._asked() as folder:
            return folder.names("")

    def content(self, name: str) -> bytes | None:
        """Return the content of a file; None if there is none."""
        try:
            with self._asked() as folder:
                return folder.read(name)
        except FileNotFoundError:
            return None

    def has_or_creates(self, name: str, data: bytes) -> bool:
        """Create a file unless it is there; returns whether it has this content."""
        with self._asked() as folder, suppress(FileExistsError):
            # Where this is not safe there are no snapshots, but files: two that look at one moment may both succeed.
            create = folder.create_untried if isinstance(folder, ObjectFolder) else folder.create
            try:
                create(name, data)
            except UnsafeFilesystem:
                if not folder.exists(name):
                    folder.write(name, data)
        return self.content(name) == data

    @contextmanager
    def _asked(self) -> Iterator[Folder]:
        self._opened = self._opened or open_folder(self.location, self.storage_options)
        try:
            yield self._opened
        except StorageRefused as error:  # its advice is about snapshots
            raise SinkFolderRefused(self.uri, error.reason) from error


def _replace_durably(folder: LocalFolder, name: str, data: bytes) -> None:
    unfinished = f"{_UNFINISHED}/{name}.{uuid.uuid4().hex}"
    temporary, final = Path(folder.path(unfinished)), Path(folder.path(name))
    try:
        folder.write(unfinished, data)
        try:
            temporary.replace(final)
        except FileNotFoundError:
            # Another writer of this epoch, or of a later one, was there before, and has tidied up.
            if not final.exists():
                raise
        _sync(final.parent)
    finally:
        _remove_left_over(temporary.parent, name)


def _remove_left_over(unfinished: Path, name: str) -> None:
    """Remove what this epoch and earlier ones have left when they were interrupted; names begin with the epoch."""
    with suppress(OSError):
        for entry in os.scandir(unfinished):
            if entry.name[: len(name)] <= name:
                with suppress(FileNotFoundError):
                    Path(entry.path).unlink()


def _sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def encode(values: Sequence[Any], format: str, schema: Any = None, delimiter: str = ",") -> bytes:
    """Return the content of a file.

    Raises
    ------
    UnwritableValue
        An output does not fit into the format.
    """
    match format:
        case "json":
            return b"".join(_line(json_of, value, index) for index, value in enumerate(values))
        case "lines":
            return b"".join(_line(line_of, value, index) for index, value in enumerate(values))
        case "csv":
            return _csv(values, delimiter)
        case _:
            return parquet_of(values, schema)


def _line(text_of: Callable[[Any], str], value: Any, index: int) -> bytes:
    try:
        return text_of(value).encode() + b"\n"
    except Refusal as refusal:
        raise _unwritable(value, refusal, index, refusal.path.removeprefix(".")) from None


def _csv(values: Sequence[Any], delimiter: str) -> bytes:
    names = names_of(values)
    lines = [csv_line(names, delimiter)] if names else []
    for index, value in enumerate(values):
        cells: dict[str, str | None] = {}
        for name, field in value.items():
            try:
                cells[name] = cell_of(field)
            except Refusal as refusal:
                raise _unwritable(value, refusal, index, name) from None
        lines.append(csv_line(map(cells.get, names), delimiter))
    try:
        return "".join(lines).encode()
    except UnicodeEncodeError:
        index, name = next(_without_encoding(values))
        raise _unwritable(values[index], half_of_a_pair(), index, name) from None


def _without_encoding(values: Sequence[Any]) -> Iterator[tuple[int, str]]:
    """Yield the places of text, also in names, that UTF-8 cannot encode."""
    for index, value in enumerate(values):
        for name, field in value.items():
            if not all(map(_is_text, (name, cell_of(field) or ""))):
                yield index, name


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _unwritable(value: Any, refusal: Refusal, index: int, column: str) -> UnwritableValue:
    return UnwritableValue(value, refusal.reason, column=column or None, index=index)
