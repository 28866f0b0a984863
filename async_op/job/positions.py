"""How far each partition of the source has been read, and what that says about watermarks."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice, repeat
from operator import eq
from typing import Any

from async_op.connectors.conformance import misbehaved
from async_op.connectors.errors import InputReplaced
from async_op.connectors.source import PartitionId, Reached, Source
from async_op.elements import ElementId
from async_op.job.step import SOURCE
from keygroups.codec import pack
from keygroups.errors import ConfigError, UnstorableValue
from keygroups.operator_state import split
from keygroups.state.detached import own_copy
from snapshots import OperatorStateCut, Snapshot, SubtaskSnapshot

_log = logging.getLogger(__package__)

POSITIONS, WATERMARKS, CONTENTS = "positions", "watermarks", "contents"

_A_POSITION = "a position of the source"

_SOURCE = None
"""What stands for the source itself among the ids of partitions; its content is the origin."""

GONE_MAX = 10_000
"""With so many partitions that the source no longer has, a warning says how to remove their positions."""

_TOO_MANY = (
    "the source no longer has %d partitions whose positions each snapshot keeps, in case they come back; stop the job "
    'and remove the others: store.edit().put_items(OperatorListState("positions"), kept, step="source").commit()'
)


@dataclass(slots=True)
class Partition:
    """A partition of the source.

    Attributes
    ----------
    id : str or int
        What the source calls it.
    subtask : int
        The subtask of the source that it belongs to.
    position : object
        Where the next read goes on; None is the beginning.
    watermark : int or None
        The promise that its timestamps give; None before the first one.
    content : object
        What the source says identifies the content up to the position; None if it says nothing.
    is_read : bool
        Whether it is read in this run. A partition that the source no longer has keeps its position, and one that
        comes back is read again.
    has_ended : bool
        Whether it was read to its end.
    quiet_since : float
        When its last element came, or when it was found.
    is_waiting : bool
        Whether an element of it waits for room, or for the end of a pause. Then it is not quiet.
    text : str
        What ids of elements call it; see `partition_text`.
    """

    id: PartitionId
    subtask: int
    position: Any = None
    watermark: int | None = None
    content: Any = None
    is_read: bool = False
    has_ended: bool = False
    quiet_since: float = 0.0
    is_waiting: bool = False
    text: str = ""

    def element_id(self, position: Any) -> str:
        """Return the id of the element after which a reader goes on at a position."""
        return f"{self.text}@{position}"

    def element_ids(self, positions: Sequence[Any]) -> Iterable[ElementId]:
        """Return the ids of many elements; unless a position may change, they are made only on request."""
        if type(positions) is range or _FIXED.issuperset(map(type, positions)):
            return zip(repeat(self.element_id("")), positions, strict=False)
        return list(map(self.element_id, positions))  # now: the text of a position is made by the source's code

    def repeats(self, positions: Sequence[Any]) -> bool:
        """Return whether two elements in a row have one position: a cut between them would lose the second one."""
        if type(positions) is range:
            return False
        is_same = bool(positions[0] == self.position)
        return is_same or any(map(eq, positions, islice(positions, 1, None)))


_FIXED = frozenset({int, str})
"""Types of positions that cannot change and can be stored, but for half of a surrogate pair."""


def is_fixed(position: Any) -> bool:
    """Return whether a position can neither change nor fail to be stored."""
    return type(position) in _FIXED


def own_position(position: Any) -> Any:
    """Return a copy of a position: the source may change the object after it has yielded it.

    Raises
    ------
    UnstorableValue
        No snapshot can hold it. The first snapshot would refuse it, but only after its calls, and so at every start.
    """
    if is_fixed(position):
        return position
    pack(position, _A_POSITION)
    return own_copy(position)


class Positions:
    """The partitions of the source, assigned to its subtasks. Only the thread of the event loop may call it.

    Parameters
    ----------
    watermark_delay : int or None
        Milliseconds by which timestamps may be out of order; None without watermarks.
    idle_timeout : float or None
        Seconds after which a quiet partition holds back no watermark; None for never.
    origin : str
        What positions of the source belong to.
    """

    def __init__(self, watermark_delay: int | None, idle_timeout: float | None, origin: str) -> None:
        self.partitions: dict[PartitionId, Partition] = {}
        self._origin = origin
        self._watermark_delay = watermark_delay
        self._idle_timeout = idle_timeout
        self._parallelism = 1
        self._has_warned = False

    def lag(self, source: Source[Any]) -> int | None:
        """Return how many records of all partitions were not read yet; None if the source says it of none."""
        known: list[int] = []
        for one in list(self.partitions.values()):  # a copy, because the event loop may add partitions meanwhile
            lag: object = source.lag(one.id, one.position) if one.is_read else None
            if isinstance(lag, int):
                known.append(lag)
            elif lag is not None:
                raise misbehaved(source, "lag()", lag, "return a whole number, or None")
        return sum(known) if known else None

    def restore(self, snapshot: Snapshot | None, parallelism: int) -> None:
        """Begin with the positions of a snapshot, assigned to a number of subtasks.

        Raises
        ------
        InputReplaced
            They were stored for another origin.
        """
        self._parallelism = parallelism
        if snapshot is None or SOURCE not in snapshot.step_names:
            return
        shares = [snapshot.restore(subtask, parallelism, step=SOURCE) for subtask in range(parallelism)]
        for subtask, share in enumerate(shares):
            items: Any = share.operator_state(POSITIONS)
            self.partitions |= {name: Partition(name, subtask, position) for name, position in items}
        for share in shares:
            marks: Any = share.operator_state(WATERMARKS)
            for name, watermark in marks:
                if name in self.partitions:  # its position may have been removed
                    self.partitions[name].watermark = watermark
        contents: dict[Any, Any] = {}
        for share in shares:
            items = share.operator_state(CONTENTS)
            contents |= dict(items)
        self._check_origin(contents.get(_SOURCE, ""))
        for name, one in self.partitions.items():
            one.content = contents.get(name)

    def _check_origin(self, before: str) -> None:
        if self.partitions and before != self._origin:
            reason = f"it is {self._origin or 'another source'} now, and was {before or 'another source'} before"
            position = next(iter(self.partitions.values())).position
            raise InputReplaced("the job's source", position, reason, "give the job a new job_id")

    def known(self) -> dict[PartitionId, Reached]:
        """Return the position and the content of each partition, for the source to keep."""
        return {name: Reached(own_copy(one.position), own_copy(one.content)) for name, one in self.partitions.items()}

    def deal_out(self, parallelism: int) -> None:
        """Reassign all partitions to another number of subtasks, in contiguous runs as a restore does."""
        lists = [self._lists(subtask) for subtask in range(self._parallelism)]
        dealt = split({name: [own[name] for own in lists] for name in lists[0]}, parallelism)
        self._parallelism = parallelism
        for subtask, positions in enumerate(dealt[POSITIONS]):
            for name, _ in positions:
                self.partitions[name].subtask = subtask

    def found(self, ids: Iterable[Any], now: float) -> list[Partition]:
        """Return the source's partitions that are not read yet; new ones go to the emptiest subtasks.

        Raises
        ------
        ConfigError
            An id is neither text that can be stored nor an integer, or looks like another one.
        """
        ids = list(ids)
        for name in ids:
            if not isinstance(name, str | int) or isinstance(name, bool):
                raise ConfigError("partitions", name, "the id of a partition is a str or an int")
            if name not in self.partitions:
                _check_storable(name)
        fresh = []
        counts = self._counts()
        texts = {str(name): type(name) for name in self.partitions}
        for name in ids:
            if texts.setdefault(str(name), type(name)) is not type(name):
                raise ConfigError("partitions", name, "two ids of partitions look alike: use either str or int")
            partition = self.partitions.setdefault(name, Partition(name, -1))
            if partition.subtask < 0:
                partition.subtask = counts.index(min(counts))
                counts[partition.subtask] += 1
            if not partition.is_read:
                partition.is_read, partition.has_ended, partition.quiet_since = True, False, now
                fresh.append(partition)
        self._notice_gone(set(ids))
        return fresh

    def _notice_gone(self, listed: set[PartitionId]) -> None:
        gone = [partition for name, partition in self.partitions.items() if name not in listed]
        for partition in gone:
            partition.is_read &= not partition.has_ended  # one that comes back is read again, from its position
        if len(gone) >= GONE_MAX and not self._has_warned:
            self._has_warned = True
            _log.warning(_TOO_MANY, len(gone))

    def _counts(self) -> list[int]:
        """Return how many partitions each subtask has that have not ended."""
        counts = [0] * self._parallelism
        for partition in self.partitions.values():
            counts[partition.subtask] += not partition.has_ended
        return counts

    def passed(self, partition: Partition, timestamp: int | None, position: Any, now: float) -> None:
        """Note that elements have been handed on: the largest of their timestamps, and the position of the last one."""
        partition.position, partition.quiet_since = position, now
        if timestamp is not None and self._watermark_delay is not None:
            promise = timestamp - self._watermark_delay - 1
            if partition.watermark is None or promise > partition.watermark:
                partition.watermark = promise

    def reached(self, partition: Partition, position: Any, content: Any = None) -> bool:
        """Note a position without an element, or another content; returns whether one of them has changed."""
        has_moved = bool(partition.position != position or (content is not None and partition.content != content))
        partition.position = own_position(position)
        if content is not None:
            partition.content = own_copy(content)
        return has_moved

    def watermarks(self, now: float, *, is_bounded: bool) -> list[tuple[int | None, bool]]:
        """Return for each subtask its watermark, None while it is unknown, and whether it is idle.

        The watermark is the smallest of the partitions that are not quiet, or the largest if all are.
        """
        active: list[list[int | None]] = [[] for _ in range(self._parallelism)]
        known: list[list[int]] = [[] for _ in range(self._parallelism)]
        for partition in (one for one in self.partitions.values() if one.is_read):
            if partition.watermark is not None:
                known[partition.subtask].append(partition.watermark)
            if not partition.has_ended and not self._is_quiet(partition, now, is_bounded):
                active[partition.subtask].append(partition.watermark)
        return [
            (_smallest(marks), False) if marks else (max(ended, default=None), True)
            for marks, ended in zip(active, known, strict=True)
        ]

    def _is_quiet(self, partition: Partition, now: float, is_bounded: bool) -> bool:
        if is_bounded or self._idle_timeout is None or partition.is_waiting:
            return False
        return now - partition.quiet_since >= self._idle_timeout

    def cut(self, subtask: int, max_parallelism: int, hash_: str) -> SubtaskSnapshot:
        """Return the snapshot of one subtask of the source."""
        return SubtaskSnapshot(
            subtask_index=subtask,
            parallelism=self._parallelism,
            max_parallelism=max_parallelism,
            hash=hash_,
            operator_states=tuple(
                OperatorStateCut(name, "split", tuple(items)) for name, items in self._lists(subtask).items()
            ),
        )

    def _lists(self, subtask: int) -> dict[str, list[tuple[Any, Any]]]:
        """Return the operator lists of one subtask, each with an item for a partition."""
        own = [one for one in self.partitions.values() if one.subtask == subtask]
        contents: list[tuple[Any, Any]] = [(one.id, one.content) for one in own if one.content is not None]
        if self._origin and not subtask and self.partitions:
            contents.insert(0, (_SOURCE, self._origin))
        return {
            POSITIONS: [(one.id, one.position) for one in own],
            WATERMARKS: [(one.id, one.watermark) for one in own if one.watermark is not None],
            CONTENTS: contents,
        }


def _check_storable(name: PartitionId) -> None:
    try:
        pack(name, "the id of a partition")
    except UnstorableValue as error:
        raise ConfigError("partitions", name, "the id of a partition is stored, which this one cannot be") from error


def _smallest(marks: list[int | None]) -> int | None:
    return None if None in marks else min(mark for mark in marks if mark is not None)
