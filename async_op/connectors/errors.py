"""Errors of connectors, named after the situation; each says what to do next."""

from __future__ import annotations

from async_op.errors import shorten
from keygroups.errors import KeyGroupsError, in_message
from keygroups.safe_text import described


class ConnectorNotInstalled(KeyGroupsError, ImportError):
    """A connector needs a package that is not installed."""

    is_permanent = True

    package: str
    """The package that is missing."""
    extra: str
    """The extra of this project that brings it."""

    _template = "{package} is not installed: pip install 'keygroups[{extra}]'"


class ConnectorUnavailable(KeyGroupsError, ConnectionError):
    """A storage, broker or database did not answer at any of the attempts."""

    what: str
    """What was being done, with the connector and the partition or epoch."""
    attempts: int
    """How often it was tried."""
    reason: str
    """The last error."""

    def _message(self) -> str:
        times = "once" if self.attempts == 1 else f"{self.attempts} times"
        return (
            f"{self.what} failed {times}, the last time with: {self.reason}; start the job again when the other side "
            "answers, or pass a `retry` with more attempts"
        )


class ConnectorInterrupted(KeyGroupsError, RuntimeError):
    """A source or a sink raised what is no `Exception`, such as `SystemExit`."""

    what: str
    """What was being done, such as "reading partition 0 of Orders"."""
    cause: str
    """The error, as text; the error itself is `__cause__`."""

    def __init__(self, what: str, cause: BaseException) -> None:
        self.what = what
        self.cause = described(cause)
        super().__init__(
            f"{what} ended with {self.cause}, which is not an Exception; raise one there, and start again: the newest "
            "snapshot has all that was committed"
        )


class InputReplaced(KeyGroupsError, ValueError):
    """What a job has read in part is no longer there: other content stands under the same name."""

    is_permanent = True

    name: str
    """The input: a file, a topic with its partition, or the job's iterable."""
    position: object
    """How far it was read."""
    reason: str
    """What differs."""
    advice: str
    """How to read the new data and keep the job, for the message."""

    _template = (
        "{name} was read up to {position}, and {reason}: so it is not the input that the job has read. To continue "
        "with the old input, restore it. To read the new one, {advice}, or begin a new job"
    )


class FileMissing(KeyGroupsError, FileNotFoundError):
    """There is no file of the name that a bounded source was given; a pattern with wildcards may match none."""

    path: str
    """The name."""

    _template = "there is no file {path}: check the path; name the files of a folder by a pattern, as in '/data/*.csv'"


class FileVanished(KeyGroupsError, FileNotFoundError):
    """A file was removed before it was read to its end."""

    path: str
    """The file."""
    position: int
    """How far it was read: bytes, or rows of a Parquet file."""

    _template = (
        "{path} was removed when it was read up to {position}; put it back, and remove files only after the job has "
        "read them"
    )


class FileRefused(KeyGroupsError, PermissionError):
    """The storage does not let a source list or read its files."""

    path: str
    """The file, or the pattern of the files."""
    reason: str
    """The storage's own message."""

    _template = (
        "the source has no access to {path} ({reason}): let this process list and read it, and start the job again"
    )


_NEW_FILE = (
    "give it a new name, or pass on_replaced='read', or remove its position while the job is stopped "
    "(`store.edit().put_items`)"
)


class FileReplaced(InputReplaced):
    """A file has other content than the content that was read."""

    path: str
    """The file."""
    position: int
    """How far it was read: bytes, or rows of a Parquet file."""

    def __init__(self, path: str, position: int, reason: str = "its beginning has changed") -> None:
        self.path = path
        super().__init__(path, position, reason, _NEW_FILE)


class FileShrank(FileReplaced):
    """A file ends before the position up to which it was read."""

    def __init__(self, path: str, position: int) -> None:
        super().__init__(path, position, "it ends before that now")


class MalformedRecord(KeyGroupsError, ValueError):
    """A file has something that is no record of its format."""

    path: str
    """The file."""
    position: int
    """Where the record begins: bytes, or rows of a Parquet file."""
    reason: str
    """What is wrong with it."""

    _template = (
        "{path}, position {position}: {reason}; pass on_error='skip' or 'dead_letter' to leave it out, or correct it "
        "without changing what comes before it"
    )


class BrokenFile(KeyGroupsError, ValueError):
    """A file cannot be read any further: it is cut off or damaged, or is not of its format."""

    path: str
    """The file."""
    position: int
    """How far it could be read: bytes, or rows of a Parquet file."""
    reason: str
    """What is wrong with it."""

    _template = (
        "{path} cannot be read beyond position {position}: {reason}; restore the file, or pass on_error='skip' or "
        "'dead_letter' to leave out the rest of it"
    )


class RecordTooLong(KeyGroupsError, ValueError):
    """A record of a text file is longer than the limit, or a quote is never closed."""

    path: str
    """The file."""
    position: int
    """The byte at which the record begins."""
    limit: int
    """The limit in bytes."""

    _template = (
        "the record at byte {position} of {path} has more than {limit} bytes; if it is right, raise max_record_bytes, "
        "and if not, look for a missing line end or quote"
    )


class UnwritableValue(KeyGroupsError, TypeError):
    """A sink cannot write an output: its format, or the table, has no place for it.

    A sink of your own may raise it, too, with the index. Its `on_error` then decides what becomes of that output.

    Parameters
    ----------
    value : object
        The output.
    reason : str
        Why it cannot be written. It is part of the message, so it quotes no value.
    target : str, optional
        Where it was to be written, such as the name of a table.
    column : str, optional
        The column that has no place for it.
    index : int, optional
        Which of the outputs that `write` was called with; the first is 0.
    """

    value: str
    """The output, shortened."""
    reason: str
    """Why it cannot be written."""
    target: str | None
    """Where it was to be written."""
    column: str | None
    """The column that has no place for it."""
    index: int | None
    """Which output of the epoch it is, counted from 0."""
    epoch: int | None
    """The epoch; None where no epoch is being delivered."""

    def __init__(
        self,
        value: object,
        reason: str,
        *,
        target: str | None = None,
        column: str | None = None,
        index: int | None = None,
    ) -> None:
        self.value = shorten(value)
        self.reason = reason
        self.target = target
        self.column = column
        self.index = index
        self.epoch = None
        self._shown = in_message(value, self.value)
        super().__init__(self._shown, reason)  # the first tells the base that a value is hidden

    def __str__(self) -> str:
        into = "" if self.target is None else f" into {self.target}"
        places = {"column": self.column, "output": self.index, "epoch": self.epoch}
        named = ", ".join(f"{name} {place!r}" for name, place in places.items() if place is not None)
        where = f"{into}{f' ({named})' if named else ''}"
        return (
            f"{self._shown} cannot be written{where}: {self.reason}; change the output in the last step, and for what "
            "is committed already start again with on_error='skip' or 'dead_letter' of the sink, or change it in a "
            "subclass of the sink, which gets the epoch again: by `write` in a job, by `write_rows` on Spark"
        )


class SinkUnavailable(KeyGroupsError, ConnectionError):
    """A sink did not answer at any attempt. Nothing is lost: the epoch is committed, and the next start delivers it."""

    sink: str
    """The sink."""
    epoch: int | None
    """The epoch that was to be written; None if the sink was being opened."""
    attempts: int
    """How often it was tried."""
    reason: str
    """The last error, as text; the error itself is `__cause__`."""

    def _message(self) -> str:
        written = f"epoch {self.epoch} could not be written to {self.sink}"
        doing = f"{self.sink} could not be opened for the first epoch" if self.epoch is None else written
        return (
            f"{doing}, at {self.attempts} attempts ({self.reason}): check that the target answers, then start again "
            "to deliver the rest; retry= of the sink sets how long it is retried"
        )


class SinkRefused(KeyGroupsError, RuntimeError):
    """The target of a sink refuses to be written at all, whatever the outputs are.

    Rights or a bucket may be missing, or the storage cannot be asked with the options that it was given.
    """

    target: str
    """The target, such as the name of a table."""
    reason: str
    """What it says."""

    _template = (
        "{target} refuses writes: {reason}; correct the target or the rights, then start again to deliver the rest"
    )


class UnsupportedColumn(KeyGroupsError, TypeError):
    """A table cannot have a column of this type, or a column has no type because nothing is in it."""

    is_permanent = True

    target: str
    """The table."""
    column: str
    """The column; a field within it follows after a dot."""
    type: str
    """The type in Arrow."""
    advice: str
    """What to do."""

    _template = "{target} cannot have the column {column!r} of the type {type}: {advice}"


class EpochsBehind(KeyGroupsError, RuntimeError):
    """The target has newer epochs than the one to write, which is not a repeat: the job has started from scratch."""

    is_permanent = True

    name: str
    """The name under which the target remembers the job's epochs; for files, the folder."""
    epoch: int
    """The epoch that was to be written."""
    newest: int
    """The newest epoch that the target has."""
    advice: str = "give its sink another name"
    """What to do if it has, for the message."""

    _template = (
        "epoch {epoch} of {name!r} and those before it were skipped, because epoch {newest} is already there: if the "
        "job has started from scratch, {advice}"
    )


class SinkFolderRefused(KeyGroupsError, PermissionError):
    """The storage does not let a sink read or write its folder, for instance because the disk is read-only."""

    folder: str
    """The folder."""
    reason: str
    """The storage's own message."""

    _template = (
        "the sink has no access to {folder} ({reason}): let this process read and write there, or give the sink "
        "another folder, and start the job again to deliver the rest"
    )


class SinkContended(KeyGroupsError, RuntimeError):
    """Other writers were faster at every attempt to write an epoch; nothing of it was written."""

    table: str
    """The table."""
    attempts: int
    """How often it was tried."""

    _template = (
        "{table} was changed by others at each of {attempts} attempts to write an epoch, so nothing was written; start "
        "the job again, or let fewer writers into the table"
    )


class TargetMissing(KeyGroupsError, LookupError):
    """The table, folder or topic into which a sink writes does not exist, or does not exist any more."""

    table: str
    """The table, folder or topic."""
    was_there: bool = False
    """Whether this job has written into it before, so that it was removed since."""

    def _message(self) -> str:
        if self.was_there:
            return (
                f"{self.table} is gone, although this job has written to it before: put it back, or give the sink "
                "another name or place, which starts with the next epoch"
            )
        return f"there is no table {self.table}: create it with the columns of the outputs, then start the job"


class TargetReplaced(KeyGroupsError, LookupError):
    """A sink's target has no note of this job any more, so it is another one under the same name."""

    is_permanent = True

    target: str
    """The table, folder or topic."""
    name: str
    """The name under which it noted the job's epochs."""

    _template = (
        "{target} has no epochs of {name!r}, although this job has written to it: it was removed and recreated, or its "
        "record of epochs was removed; restore it, or give the sink another name, which starts with the next epoch"
    )


class TargetTaken(KeyGroupsError, RuntimeError):
    """A sink's target has epochs of another job under the sink's name, which would be taken for epochs of this one."""

    is_permanent = True

    target: str
    """The table, folder or topic."""
    name: str
    """The name under which the epochs are noted; for files, the folder."""
    advice: str = "give the sink a name of its own"
    """What to do."""

    _template = (
        "epochs of {name!r} in {target} were written by another job, or by this one before its snapshots were lost; "
        "nothing was written now: {advice}"
    )


class TargetAhead(KeyGroupsError, RuntimeError):
    """A sink's target has epochs that the job's snapshots do not contain: an earlier version of them was put back.

    The outputs of these epochs come again, in epochs that differ from the first ones. A sink that went on would skip
    new outputs, or write old ones twice.
    """

    is_permanent = True

    target: str
    """The table, folder or topic."""
    newest: int
    """The newest epoch that the target has."""
    known: int
    """The newest epoch that it can have by the snapshots with which the job has started."""
    advice: str
    """What to do with the later epochs in the target."""

    _template = (
        "{target} has epochs up to {newest}, but the job has started from a snapshot that ends with epoch {known}: the "
        "snapshots were put back to an earlier version, or another run of the job has taken over; nothing was written "
        "now. If they were put back, outputs of the later epochs come again: {advice}"
    )


class TargetBehind(KeyGroupsError, RuntimeError):
    """A sink's target has lost epochs: it was restored from a backup, or a server has taken over that lacked them."""

    is_permanent = True

    target: str
    """The table or topic."""
    newest: int
    """The newest epoch that the target has."""
    written: int
    """The newest epoch that the job has written to it."""

    _template = (
        "{target} has epochs up to {newest}, but this job has written epoch {written} to it: the target was restored "
        "from a backup, or lost transactions in a failover; nothing was written now. Go back to a snapshot of epoch "
        "{newest} or earlier, whose outputs come again; or accept the gap, and give the sink another name"
    )


class TopicReplaced(InputReplaced):
    """A topic no longer has the records that were read: it was deleted and created again."""

    topic: str
    """The topic."""
    partition: int
    """The partition."""
    position: int
    """The offset from which the job would continue."""

    def __init__(self, topic: str, partition: int, position: int) -> None:
        self.topic = topic
        self.partition = partition
        reason = "the record before that has changed"
        advice = "give the new topic another name, and remove the positions while the job is stopped"
        super().__init__(f"topic {topic}, partition {partition},", position, reason, advice)


class MalformedMessage(KeyGroupsError, ValueError):
    """A record of a topic cannot be decoded."""

    topic: str
    """The topic."""
    partition: int
    """The partition."""
    offset: int
    """The offset of the record."""
    reason: str
    """What is wrong with it."""

    _template = (
        "topic {topic}, partition {partition}, offset {offset}: {reason}; correct the producer, and pass "
        "on_error='skip' or 'dead_letter' to continue after the record"
    )


class OffsetUnavailable(KeyGroupsError, LookupError):
    """A partition of a topic does not have the offset from which a job continues."""

    topic: str
    """The topic."""
    partition: int
    """The partition."""
    offset: int
    """The offset."""
    low: int | None = None
    """The first offset that the partition has; None if that is not known."""
    high: int | None = None
    """The offset after its last one; None if that is not known."""

    def _message(self) -> str:
        has = "" if self.low is None else f", which has {self.low} to {self.high}"
        return (
            f"the job continues at offset {self.offset} of {self.topic}, partition {self.partition}{has}: the topic's "
            "retention has removed it, or the topic was deleted and created again; restore the records, or start a "
            "new job without its snapshots"
        )


class KafkaRefused(KeyGroupsError, ConnectionError):
    """The brokers refuse something, or do not answer."""

    topic: str
    """The topic."""
    reason: str
    """What the client says."""
    is_transient: bool = False
    """Whether it may be over soon: a broker that is away, not a right that is missing."""

    _template = "topic {topic}: {reason}; check the brokers, the topic and the rights, then start the job again"


class SinkFenced(KeyGroupsError, RuntimeError):
    """A newer sink of the same job has taken over; this one has written nothing of its epoch."""

    is_permanent = True

    name: str
    """The job's name."""

    _template = (
        "another sink of {name!r} has taken over: end one of the two, or give them different names; if there is no "
        "other, the epoch took longer than the brokers let a transaction be open: raise transaction.timeout.ms"
    )
