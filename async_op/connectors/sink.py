"""Where the outputs of a job go, epoch by epoch."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from async_op.connectors.connector_threads import OwnThreads
from async_op.connectors.errors import TargetAhead, TargetBehind, UnwritableValue
from async_op.connectors.retrying import is_transient_of_library
from async_op.dead_letters import OnError, check_on_error
from async_op.retry import ExponentialBackoffRetry, RetryPolicy
from keygroups.arguments import check_instance
from keygroups.errors import ConfigError

if TYPE_CHECKING:
    from async_op.connectors.epoch_rows import SinkRows

T = TypeVar("T")
_Answer = TypeVar("_Answer")

SINK_RETRY = ExponentialBackoffRetry(20, 0.5, 15.0)
"""How sinks are retried by default: for two minutes on average, which outlasts a restart of brokers or a database."""


class Sink(ABC, Generic[T]):
    """Where the outputs of a job go: one call for each epoch, in the order of the epochs.

    After a crash, epochs that have been written come again, with the same values. So a sink replaces what it wrote for
    the epoch, or sees that it is there already. A write that was interrupted leaves nothing, or is replaced as well.
    Then every output arrives exactly once.

    All methods are called on the event loop of the job, so they must not block it, and one after the other. `open` and
    `close` run in one task. A sink may be opened again after it was closed.

    Attributes
    ----------
    on_error : {"fail", "skip", "dead_letter"}
        What becomes of an output for which `write` raises `UnwritableValue` with its index: the job fails and names it,
        or the rest of the epoch is written without it, and it is counted, or goes to the dead letters of the job in the
        same epoch. "fail" unless a subclass sets another.
    retry : RetryPolicy or None
        How often `open` and `write` are tried, and how long the job waits in between, after an error that
        `is_transient`, or that the policy's `retry_on` names. By default 20 attempts, with delays that grow from 0.5 to
        at most 15 seconds, half of them on average; None means one attempt.
    was_written : bool
        Whether earlier epochs of this job are in the target. The job sets it before it writes, so that a sink can tell
        a target that is new from a target that was removed.
    lineage : str
        What no other job has. The job sets it before it opens the sink. A sink that notes epochs in its target notes it
        with them, and raises `TargetTaken` if the epochs there belong to another job; "" compares nothing.
    newest_known : int or None
        The newest epoch that the target may have: the newest one in the snapshot with which the job has started, or the
        last one that was tried since. The job sets it before it opens the sink, and `note_tried` afterwards. If the
        target has a newer one, the snapshots were put back to an earlier version, and a sink that notes epochs in its
        target raises `TargetAhead`: it would take new outputs for repeated ones. None compares nothing.
    newest_written : int or None
        The newest epoch that the target must have, because the job has written it there; None compares nothing. The job
        sets it as it sets `newest_known`. A table without it has lost transactions, as in a failover to a server that
        is behind, and the sink raises `TargetBehind`.

    Examples
    --------
    >>> class Latest(Sink[dict]):
    ...     def __init__(self):
    ...         self.epochs = {}
    ...
    ...     async def write(self, values, epoch):
    ...         self.epochs[epoch] = list(values)
    """

    on_error: OnError = "fail"
    retry: RetryPolicy | None = SINK_RETRY
    was_written: bool = False
    lineage: str = ""
    newest_known: int | None = None
    newest_written: int | None = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    async def open(self) -> None:
        """Get ready to be written to, for example connect. Called once before any epoch; does nothing by default.

        It is called again after an error that is retried.
        """
        return

    @abstractmethod
    async def write(self, values: list[T], epoch: int) -> None:
        """Write the outputs of an epoch durably; the same epoch again replaces what was written before.

        Parameters
        ----------
        values : list
            The outputs, at least one, in the order in which they left the last step. They may be changed: another
            attempt gets them as they were.
        epoch : int
            The number of the epoch: it grows, and numbers may be left out, because empty epochs are not written.

        Raises
        ------
        UnwritableValue
            An output can never be written, and nothing of the epoch was. With its `index`, `on_error` decides what
            becomes of the output.
        """

    async def refused(self, values: Sequence[T]) -> list[UnwritableValue]:
        """Return an error, with its index, for every output that `write` would refuse; none by default.

        It is called after `write` has raised `UnwritableValue`, unless `on_error` is "fail", so that the refused
        outputs of an epoch need not be found one by one. It writes nothing.

        Parameters
        ----------
        values : sequence
            The outputs of an epoch.
        """
        return []

    def note_tried(self, epoch: int) -> None:
        """Note that the target may have an epoch, whatever its writer hears of it.

        The job calls it after each attempt. A sink that compares epochs calls it before it writes, because it may try
        several times in one `write`, or be used after its job has ended.
        """
        if self.newest_known is not None:
            self.newest_known = max(self.newest_known, epoch)

    def is_transient(self, error: Exception) -> bool:
        """Return whether an attempt after this error may succeed: by default for `ConnectionError` and `TimeoutError`.

        Parameters
        ----------
        error : Exception
            What `open` or `write` has raised.
        """
        return isinstance(error, ConnectionError | TimeoutError)

    def for_dead_letters(self) -> Sink[Any]:
        """Return the sink that a job with this sink for its dead letters writes them to; by default this one.

        Dead letters are dicts with the columns of `LETTER_SCHEMA`. A sink that has columns of its own to choose, or
        takes other values than dicts, returns one that is set up for them.
        """
        return self

    def for_another_run(self) -> Sink[T]:
        """Return a sink for a run that begins while another one uses this object; by default this object.

        A sink that keeps something of a run, such as a connection or the attributes above, returns a copy. Then jobs
        that run at the same time may be given one object. Each run asks for the copy before it opens the sink.
        """
        return self

    async def close(self) -> None:
        """Release what `open` has acquired. Called once after the last write, if `open` has returned."""
        return


class ShippedSink(Sink[Any]):
    """What all sinks of this package have in common: their options, what names their target, and a thread for it.

    A job awaits the coroutines, which have one thread do what blocks. A pipeline on Spark calls what blocks itself.

    Parameters
    ----------
    on_error, retry
        As the attributes of `Sink`.
    dead_letters : Sink or None
        Gets the refused outputs of a pipeline on Spark; a job has dead letters of its own.
    """

    def __init__(self, *, on_error: OnError, retry: RetryPolicy | None, dead_letters: Sink[Any] | None) -> None:
        check_on_error(on_error)
        check_instance("retry", retry, (RetryPolicy, type(None)), reason="pass a retry policy, or None for one attempt")
        kinds = (Sink, type(None))
        check_instance("dead_letters", dead_letters, kinds, reason="pass a sink; a job has dead_letters of its own")
        self.on_error = on_error
        self.retry = retry
        self.dead_letters = dead_letters
        self._threads: OwnThreads | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the thread and what else belongs to a run: a copy is for another one, maybe on another machine."""
        return self.__dict__ | {"_threads": None}

    def for_another_run(self) -> Self:
        """Return a copy, which has the options only."""
        return copy.copy(self)

    async def open(self) -> None:
        """Look whether the target is the one that this job has written to, as `check_target` does."""
        self._threads = self._threads or OwnThreads("keygroups sink", 1)
        try:
            await self._threads.run(self.check_target)
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Disconnect, and end the thread."""
        if self._threads is not None:
            threads, self._threads = self._threads, None
            await threads.close(self.disconnect)

    @property
    @abstractmethod
    def place_of_notes(self) -> tuple[str, ...]:
        """Where the newest epoch is noted. Two sinks with one place would take each other's epochs for repeats."""

    def check_apart(self, other: object) -> None:
        """Raise `ConfigError` if the sink for dead letters notes its epochs in the same place as this one."""
        if isinstance(other, ShippedSink) and other.place_of_notes == self.place_of_notes:
            reason = "it notes its epochs where the sink of the outputs does: give it another name or folder"
            raise ConfigError("dead_letters", other, reason)

    @abstractmethod
    def check_target(self) -> None:
        """Raise an error if the target is not the one that this job has written to; blocks.

        It is called before the first epoch, so that no call is made whose output has nowhere to go. A target that does
        not exist is made with the first epoch.

        Raises
        ------
        TargetMissing, TargetReplaced
            The target has had epochs of this job, and has lost them.
        TargetTaken
            It has epochs of another job under this name.
        TargetAhead
            It has epochs that the job's snapshots do not contain.
        TargetBehind
            It has lost epochs that the job has written.
        """

    def look_at_target(self) -> None:
        """Look at the target as `check_target` does, without disturbing a run that writes to it; blocks."""
        try:
            self.check_target()
        finally:
            self.disconnect()

    def check_ahead(self, target: str, newest: int, advice: str) -> None:
        """Raise `TargetAhead` if the newest epoch of a target is not in the job's snapshots."""
        if self.newest_known is not None and newest > self.newest_known:
            raise TargetAhead(target, newest, self.newest_known, advice)

    def check_behind(self, target: str, newest: int) -> None:
        """Raise `TargetBehind` if a target no longer has the newest epoch that was written to it."""
        if self.newest_written is not None and newest < self.newest_written:
            raise TargetBehind(target, newest, self.newest_written)

    def disconnect(self) -> None:
        """Let go of the target until the next epoch; blocks."""

    @abstractmethod
    def write_rows(self, rows: SinkRows, epoch: int) -> None:
        """Write an epoch of a pipeline on Spark; blocks."""

    @abstractmethod
    def refused_rows(self, rows: SinkRows) -> list[UnwritableValue]:
        """Return an error for every row that `write_rows` would refuse; blocks."""

    def __call__(self, batch_df: Any, epoch: int) -> None:
        """Write the rows of an epoch, unless they are there.

        A pipeline on Spark calls this method only if a subclass overrides it. Otherwise it calls `write_rows`, with
        retries and `on_error`.
        """
        from async_op.connectors.epoch_rows import FrameRows

        rows = FrameRows(batch_df)
        if not rows.is_empty:
            self.write_rows(rows, epoch)

    def is_transient(self, error: Exception) -> bool:
        """Return whether an attempt may succeed after this error: one of the network or of storage."""
        return is_transient_of_library(error)

    async def _on_thread(self, work: Callable[[], _Answer]) -> _Answer:
        if self._threads is None:
            await self.open()
        assert self._threads is not None, "opened above"
        return await self._threads.run(work)
