"""What a job reads: partitions with positions, from which it continues after a restart."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

from async_op.connectors.retrying import RETRY
from async_op.dead_letters import OnError
from async_op.retry import RetryPolicy
from keygroups.arguments import check_instance

T = TypeVar("T")

PartitionId: TypeAlias = str | int
"""What names a partition: the same in every run, because positions are stored under it."""

Item: TypeAlias = tuple[T, int | None, Any]
"""A value, its timestamp in milliseconds (or None), and the position from which the next read continues."""


_PAUSES = 4
"""A look that takes long is followed by a pause that is so many times as long."""

_PAUSE_SECONDS_MAX = 60.0
"""One look that has hung must not hide new partitions for long."""


def pause_between_looks(interval: float, took: float) -> float:
    """Return the seconds until a source is looked at again, after a look that took some seconds."""
    return max(interval, min(_PAUSES * took, _PAUSE_SECONDS_MAX))


@dataclass(frozen=True, slots=True)
class Reached:
    """A position without a value: everything before it was read, and the next read continues there.

    A reader yields it, never within a list, where it begins or what it passes without a value, so that a restart skips
    and repeats nothing.

    Attributes
    ----------
    position : object
        The position.
    content : object
        What identifies the content that was read up to here, for example a digest; made of what msgpack can store. The
        job stores it beside the position and passes it to `Source.restore`. None keeps what was stored before. A
        snapshot may be cut after any item, so the first content of a partition comes before the first item.
    """

    position: Any
    content: Any = None


@dataclass(frozen=True, slots=True)
class Undecodable:
    """A record that cannot be decoded. A reader yields it in place of an item, also within a list.

    The job handles it by the source's `on_error`: it raises the error, skips the record, or makes it a dead letter. In
    the last two cases reading continues with the next item.

    Attributes
    ----------
    raw : object
        The record as it was read, for the dead letter.
    position : object
        The position after the record.
    error : Exception
        Why it cannot be decoded. Its message names the place, such as file and byte.
    content : object
        As for `Reached`.

    Raises
    ------
    ConfigError
        `error` is no exception.
    """

    raw: Any
    position: Any
    error: Exception
    content: Any = None

    def __post_init__(self) -> None:
        check_instance("error", self.error, Exception, reason="pass an exception that says why it cannot be decoded")


Read: TypeAlias = Item[T] | Undecodable
"""One of the things that a list from a reader is made of."""

Piece: TypeAlias = Read[T] | Reached | list[Item[T]] | list[Read[T]]
"""What a reader yields."""


class Source(ABC, Generic[T]):
    """What a job reads: partitions, each of them a sequence of values with positions.

    A position says where in a partition a reader continues. It is stored in snapshots, so it must fit msgpack:
    numbers, text, bytes, lists and dicts of them. None is the beginning. Reading again from a position gives the
    same values in the same order.

    `open`, `partitions`, `read` and `close` are called on the event loop of the job, so they must not block it. What
    `read` returns decides where values are fetched: an async iterator is awaited on the event loop, and any other
    iterator is pulled, and closed if it is a generator, on a thread of its own. Each partition has at most one reader.
    `open` and `close` run in one task. A source may be opened again after it was closed.

    Attributes
    ----------
    bounded : bool
        Whether the partitions end, and with them the job. False unless a subclass says otherwise.
    on_error : {"fail", "skip", "dead_letter"}
        What the job does about a record that is `Undecodable`. "fail" unless a subclass says otherwise.
    retry : RetryPolicy or None
        How often `open`, `partitions` and `read` are retried after a transient error (a broken or refused
        connection, a timeout, a busy storage) or that the policy's `retry_on` names: by default for about 75 seconds.
        After an error of `read`, the job reads again from the last position. None tries once.
    is_decoded : bool
        Whether all values consist of text, bytes, numbers, times, None, lists and dicts alone. Then calls get copies of
        flat dicts without a look at the type of each value in them. False unless a subclass says otherwise.
    look_interval : float
        Seconds between two calls of `partitions` of a source that is not bounded: 10.0 unless a subclass says
        otherwise. A source whose calls take long is asked less often.
    origin : str
        What the positions belong to, such as a topic. A job does not use positions that were stored for another origin,
        because ids of partitions may be the same there: it raises `InputReplaced`. "" unless a subclass says otherwise.

    Examples
    --------
    >>> class Numbers(Source[int]):
    ...     bounded = True
    ...
    ...     def partitions(self):
    ...         return ["even", "odd"]
    ...
    ...     def read(self, partition, position):
    ...         first = ["even", "odd"].index(partition) if position is None else position
    ...         for number in range(first, 10, 2):
    ...             yield number, None, number + 2
    >>> [value for value, _, _ in Numbers().read("odd", 5)]
    [5, 7, 9]
    """

    bounded: bool = False
    is_decoded: bool = False
    on_error: OnError = "fail"
    retry: RetryPolicy | None = RETRY
    look_interval: float = 10.0
    origin: str = ""

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    async def open(self) -> None:
        """Get ready to be read, for example connect. Called before any other method; does nothing by default.

        If it raises a transient error, it is called again.
        """
        return

    async def restore(self, known: Mapping[PartitionId, Reached]) -> None:
        """Take the stored positions and contents of all partitions, after `open`, if there are any.

        A source whose input may be replaced compares them with what it finds, here or in `read`. It raises
        `InputReplaced` where a position no longer belongs to the content. Does nothing by default.

        Parameters
        ----------
        known : mapping
            For each partition the position from which it will be read, with the content that was stored beside it.
        """
        return

    @abstractmethod
    def partitions(self) -> Iterable[PartitionId] | Awaitable[Iterable[PartitionId]]:
        """Return the ids of all partitions, or a coroutine of them.

        It is called again from time to time, unless the source is bounded, and new partitions are read from then on.
        Those that are found together are read in this order.
        A partition that is no longer there is not read again after a restart. If it comes back, reading continues from
        its position.
        """

    @abstractmethod
    def read(self, partition: PartitionId, position: Any) -> Iterator[Piece[T]] | AsyncIterator[Piece[T]]:
        """Return an iterator of the values of a partition from a position on; its end is the end of the partition.

        An item is a value, its timestamp in milliseconds or None, and the next position; or an `Undecodable` record; or
        a list of these; or `Reached`, a position without a value, which is part of the next snapshot. An empty list is
        a sign of life: a blocking iterator yields one at least every few seconds when there is nothing to read, because
        it cannot be stopped in between. An async iterator may be cancelled wherever it waits.

        Parameters
        ----------
        partition : str or int
            One of the ids.
        position : object
            The last position that is part of the snapshot; None for the beginning.
        """

    def full_name(self, partition: PartitionId) -> str:
        """Return the name of a partition among all sources' partitions, such as topic and number; by default its id.

        It is part of the idempotency keys of its elements. So it stays the same as long as the partition has the same
        elements, and another topic, folder or table has another one. It must not block.

        Parameters
        ----------
        partition : str or int
            One of the ids, after `partitions` has returned it.
        """
        return str(partition)

    def lag(self, partition: PartitionId, position: Any) -> int | None:
        """Return how many records of a partition lie behind a position; None if it is not known, as by default.

        It is asked for the progress of a job, by any thread, so it must neither block nor ask a server.

        Parameters
        ----------
        partition : str or int
            One of the ids.
        position : object
            The newest position that was read; None for the beginning.
        """
        return None

    def for_another_run(self) -> Source[T]:
        """Return a source for a run that begins while another one uses this object; by default this object.

        A source that keeps something of a run, such as a connection, returns a copy. Then jobs that run at the same
        time may be given one object. Each run asks for the copy before it opens the source.
        """
        return self

    async def close(self) -> None:
        """Release what `open` has acquired. Called once after the last read has ended, if `open` has returned."""
        return
