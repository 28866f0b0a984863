"""Two small files in the operator's folder: what the client wishes, and what the worker beside the server says."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from async_op.errors import BlocksEventLoop
from async_op.spark.autoscale import ScalingDecision
from async_op.spark.progress import EpochProgress
from snapshots.filesystem import Folder
from snapshots.format.epoch_under_way import EpochUnderWay

EPOCHS_MAX = 100
"""How many epochs of each pipeline the worker reports: the file is rewritten after each epoch."""

_BYTES_MAX = 4 * 2**20
"""No file of an exchange is longer; a hundred epochs of a chain of ten pipelines have about 1 MiB, without hosts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """What the client wishes; a later one takes the place of the one before.

    Attributes
    ----------
    parallelism : tuple of int or None
        For each pipeline the parallelism that was last asked for; None leaves it to the worker.
    drains : int
        How many drains the client has asked for.
    drains_at_end : bool
        Whether nothing is to stay in flight after the end of the query.
    holds : bool
        Whether no other micro-batch is to begin, because the client is going to stop the query.
    timeout : float or None
        Seconds from now that a stop waits for calls; None waits for all.
    """

    parallelism: tuple[int | None, ...]
    drains: int = 0
    drains_at_end: bool = False
    holds: bool = False
    timeout: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What the worker says.

    Attributes
    ----------
    beat : int
        Grows with each answer, so that the client sees that the worker is alive.
    drains : int
        How many drains that were asked for are done.
    is_held : bool
        Whether no micro-batch is under way, and none begins, as the client has wished.
    is_delivering : bool
        Whether the sink is at work.
    is_over : bool
        Whether the query's end is done: the worker says no more.
    failure : str or None
        The error of an epoch, which has ended the query.
    notes : tuple of str
        The notes of that error, among which is its traceback.
    progress : tuple of tuple of EpochProgress
        For each pipeline its newest epochs, oldest first.
    under_way : tuple of EpochUnderWay or None
        For each pipeline the epoch under way.
    blocking : tuple of BlocksEventLoop
        The functions that have blocked the event loop of their host.
    """

    beat: int = 0
    drains: int = 0
    is_held: bool = False
    is_delivering: bool = False
    is_over: bool = False
    failure: str | None = None
    notes: tuple[str, ...] = ()
    progress: tuple[tuple[EpochProgress, ...], ...] = ()
    under_way: tuple[EpochUnderWay | None, ...] = ()
    blocking: tuple[BlocksEventLoop, ...] = ()


class Exchange:
    """The files of one run of a query. Only the client writes wishes, only the worker writes answers.

    Parameters
    ----------
    folder : Folder
        The folder of the first pipeline's operator.
    run_id : str
        Names the run uniquely.

    Attributes
    ----------
    prefix : str
        What the names of both files begin with.
    """

    def __init__(self, folder: Folder, run_id: str) -> None:
        self._folder = folder
        self.prefix = f"queries/{run_id}/"
        self._wishes = f"{self.prefix}wishes.json"
        self._answer = f"{self.prefix}answer.json"

    def wish(self, wishes: Wishes) -> None:
        """Let the worker know."""
        self._folder.replace(self._wishes, json.dumps(asdict(wishes)).encode())

    def wishes(self) -> Wishes | None:
        """Return the newest wishes; None if there are none."""
        read = self._read(self._wishes)
        return None if read is None else Wishes(**{**read, "parallelism": tuple(read["parallelism"])})

    def answer(self, answer: Answer) -> None:
        """Let the client know; of fewer epochs, if each has so many hosts that the file would be too long."""
        while len(said := _encoded(answer)) > _BYTES_MAX and any(answer.progress):
            answer = replace(answer, progress=tuple(epochs[(len(epochs) + 1) // 2 :] for epochs in answer.progress))
        self._folder.replace(self._answer, said)

    def answered(self) -> Answer:
        """Return the newest answer; one that says nothing before the first."""
        read = self._read(self._answer)
        if read is None:
            return Answer()
        under_way = tuple(None if one is None else EpochUnderWay(**one) for one in read["under_way"])
        progress = tuple(tuple(map(_epoch, one)) for one in read["progress"])
        blocking = tuple(BlocksEventLoop(*found) for found in read["blocking"])
        told = {"notes": tuple(read["notes"]), "progress": progress, "under_way": under_way, "blocking": blocking}
        return Answer(**{**read, **told})

    def _read(self, name: str) -> dict[str, Any] | None:
        try:
            text = self._folder.read(name, 0, _BYTES_MAX)
        except FileNotFoundError:
            return None
        read: dict[str, Any] = json.loads(text)
        return read


def _encoded(answer: Answer) -> bytes:
    return json.dumps({**asdict(answer), "blocking": [found.args for found in answer.blocking]}).encode()


def newest(progress: Sequence[EpochProgress]) -> tuple[EpochProgress, ...]:
    """Return as many epochs as an answer has."""
    return tuple(progress[-EPOCHS_MAX:])


def _epoch(read: dict[str, Any]) -> EpochProgress:
    scaling = read["scaling"]
    values = {"hosts": tuple(read["hosts"]), "scaling": None if scaling is None else ScalingDecision(**scaling)}
    return EpochProgress(**{**read, **values})
