"""Errors of connectors, named after the situation; each says what to do next."""

from __future__ import annotations

from async_op.errors import shorten
from keygroups.errors import KeyGroupsError, in_message


class ConnectorNotInstalled(KeyGroupsError, ImportError):
    """A connector needs a package that is not installed.

    Attributes
    ----------
    package : str
        The package that is missing.
    extra : str
        The extra of this project that brings it.
    """

    def __init__(self, package: str, extra: str) -> None:
        self.package = package
        self.extra = extra
        super().__init__(f"{package} is not installed: pip install 'keygroups[{extra}]'")


class FileVanished(KeyGroupsError, FileNotFoundError):
    """A file was removed before it was read to its end.

    Attributes
    ----------
    path : str
        The file.
    position : int
        How far it was read: bytes, or rows of a Parquet file.
    """

    def __init__(self, path: str, position: int) -> None:
        self.path = path
        self.position = position
        super().__init__(
            f"{path} was removed when it was read up to {position}; put it back, and remove files only after the job "
            "has read them"
        )


class FileShrank(KeyGroupsError, ValueError):
    """A file ends before the position up to which it was read already, so it is another file under the same name.

    Attributes
    ----------
    path : str
        The file.
    position : int
        How far it was read: bytes, or rows of a Parquet file.
    """

    def __init__(self, path: str, position: int) -> None:
        self.path = path
        self.position = position
        super().__init__(
            f"{path} was read up to {position} and ends before that now; files may grow, but not change: restore the "
            "file, and give new data a new name"
        )


class MalformedRecord(KeyGroupsError, ValueError):
    """A file has something that is no record of its format.

    Attributes
    ----------
    path : str
        The file.
    position : int
        Where the record begins: bytes, or rows of a Parquet file.
    reason : str
        What is wrong with it.
    """

    def __init__(self, path: str, position: int, reason: str) -> None:
        self.path = path
        self.position = position
        self.reason = reason
        super().__init__(f"{path}, position {position}: {reason}; mend the file without moving what stands before it")


class RecordTooLong(KeyGroupsError, ValueError):
    """A record of a text file is longer than the limit, or a quote is never closed.

    Attributes
    ----------
    path : str
        The file.
    position : int
        The byte at which the record begins.
    limit : int
        The limit in bytes.
    """

    def __init__(self, path: str, position: int, limit: int) -> None:
        self.path = path
        self.position = position
        self.limit = limit
        super().__init__(
            f"the record at byte {position} of {path} has more than {limit} bytes; if it is right, raise "
            "max_record_bytes, and if not, look for a missing line end or quote"
        )


class UnwritableValue(KeyGroupsError, TypeError):
    """A sink cannot write an output in its format.

    Attributes
    ----------
    value : str
        The output, shortened.
    reason : str
        Why it cannot be written.
    """

    def __init__(self, value: object, reason: str) -> None:
        self.value: str = shorten(value)
        self.reason = reason
        shown = in_message(value, self.value)
        super().__init__(
            f"{shown} cannot be written: {reason}; change the output in the last step of the job, and what is "
            "committed already in a subclass of the sink, whose `write` gets it again at the next start"
        )


class EpochsBehind(KeyGroupsError, RuntimeError):
    """Epochs are older than what a sink's target has, and are no repeats, so the job has begun anew.

    Parameters
    ----------
    advice : str
        What to do if it has, for the message.

    Attributes
    ----------
    name : str
        The name under which the target remembers the job's epochs; for files, the folder.
    epoch : int
        The epoch that was to be written.
    newest : int
        The newest epoch that the target has.
    """

    def __init__(self, name: str, epoch: int, newest: int, advice: str = "give its sink another name") -> None:
        self.name = name
        self.epoch = epoch
        self.newest = newest
        super().__init__(
            f"epoch {epoch} of {name!r} and those before it were left out, because epoch {newest} is there "
            f"already: if the job has begun anew, {advice}"
        )


class SinkFolderRefused(KeyGroupsError, PermissionError):
    """The storage does not let a sink read or write its folder, for instance because the disk is read-only.

    Attributes
    ----------
    folder : str
        The folder.
    reason : str
        The storage's own message.
    """

    def __init__(self, folder: str, reason: str) -> None:
        self.folder = folder
        self.reason = reason
        super().__init__(
            f"the sink has no access to {folder} ({reason}): let this process read and write there, or give the sink "
            "another folder, and start the job again; it delivers what the sink has not had"
        )


class SinkContended(KeyGroupsError, RuntimeError):
    """Other writers were faster at every attempt to write an epoch; nothing of it was written.

    Attributes
    ----------
    table : str
        The table.
    attempts : int
        How often it was tried.
    """

    def __init__(self, table: str, attempts: int) -> None:
        self.table = table
        self.attempts = attempts
        super().__init__(
            f"{table} was changed by others at each of {attempts} attempts to write an epoch, so nothing was written; "
            "start the job again, or let fewer writers into the table"
        )


class TargetMissing(KeyGroupsError, LookupError):
    """The table into which a sink writes does not exist.

    Attributes
    ----------
    table : str
        The table.
    """

    def __init__(self, table: str) -> None:
        self.table = table
        super().__init__(f"there is no table {table}: create it with the columns of the outputs, then start the job")


class OffsetUnavailable(KeyGroupsError, LookupError):
    """A partition of a topic does not have the offset from which a job goes on.

    Attributes
    ----------
    topic : str
        The topic.
    partition : int
        The partition.
    offset : int
        The offset.
    low, high : int or None
        What the partition has: from `low` up to, and without, `high`; None if that is not known.
    """

    def __init__(
        self, topic: str, partition: int, offset: int, low: int | None = None, high: int | None = None
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.low = low
        self.high = high
        has = "" if low is None else f", which has {low} to {high}"
        super().__init__(
            f"the job goes on at offset {offset} of {topic}, partition {partition}{has}: the topic's retention has "
            "removed it, or the topic was made anew; restore the records, or begin a new job without its snapshots"
        )


class KafkaRefused(KeyGroupsError, ConnectionError):
    """The brokers refuse something, or do not answer.

    Attributes
    ----------
    topic : str
        The topic.
    reason : str
        What the client says.
    """

    def __init__(self, topic: str, reason: str) -> None:
        self.topic = topic
        self.reason = reason
        super().__init__(
            f"topic {topic}: {reason}; check the brokers, the topic and the rights, then start the job again"
        )


class SinkFenced(KeyGroupsError, RuntimeError):
    """A newer sink of the same job has taken over; this one has written nothing of its epoch.

    Attributes
    ----------
    name : str
        The job's name.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(
            f"another sink of {name!r} has taken over: end one of the two, or give them different names; if there is "
            "no other, the epoch took longer than the brokers let a transaction be open: raise transaction.timeout.ms"
        )
