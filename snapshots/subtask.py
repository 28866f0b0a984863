"""What one subtask hands over at a barrier: its keyed state and its in-flight elements, not stored yet."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import NamedTuple

from keygroups.ranges import KeyGroupRange, range_of
from keygroups.state import StateCut
from snapshots.manifest import OperatorStateMode

NO_KEY_GROUP = -1
"""The key group of an element without a key, and of a watermark."""


class InFlightElement(NamedTuple):
    """An element that the operator has accepted and not yet emitted.

    Attributes
    ----------
    channel : int
        The subtask in whose queue it stood; after a rescale one queue may be fed by several.
    sequence : int
        Its place in that queue.
    is_watermark : bool
        A watermark has a timestamp and nothing else.
    completed : bool
        The call has returned: `outputs` are to be emitted, and its state writes are in the state.
        A pending element's call is to be made again.
    value : object
        The input record.
    timestamp : int or None
        Milliseconds since the epoch.
    key : object
        The record's key; None for an operator without keys.
    key_group : int
        Of the key, or `NO_KEY_GROUP`.
    element_id : str
        The idempotency key, the same over retries, restarts and rescales.
    attempt : int
        The number of the attempt that runs or is due; 1 is the first.
    remaining : float or None
        What is left of the timeout, in seconds.
    delay : float or None
        What is left of the backoff before that attempt, in seconds.
    outputs : tuple or None
        The results of a completed element.
    """

    channel: int
    sequence: int
    is_watermark: bool = False
    completed: bool = False
    value: object = None
    timestamp: int | None = None
    key: Hashable = None
    key_group: int = NO_KEY_GROUP
    element_id: str = ""
    attempt: int = 1
    remaining: float | None = None
    delay: float | None = None
    outputs: tuple[object, ...] | None = None


@dataclass(frozen=True, slots=True)
class OperatorStateCut:
    """The items of a state that belongs to a subtask rather than to a key.

    Attributes
    ----------
    name : str
        Of the state.
    mode : {"split", "union", "broadcast"}
        To whom the items go after a rescale: each to one subtask, all to every subtask, or to every subtask one of the
        copies, which are all alike.
    items : tuple
        In their order.
    """

    name: str
    mode: OperatorStateMode
    items: tuple[object, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SubtaskSnapshot:
    """The state of one subtask at a barrier.

    Attributes
    ----------
    subtask_index, parallelism, max_parallelism : int
        Which subtask it is, of how many, over how many key groups.
    hash : str
        The name of the hash that maps keys to key groups.
    states : tuple of StateCut
        The keyed state.
    in_flight : tuple of InFlightElement
        In the order of the queue.
    operator_states : tuple of OperatorStateCut
        The state without a key.
    watermark : int or None
        The newest watermark that was emitted.
    emitted : int
        How many times the operator had called `output` since it was opened.
    wall_time : int
        The processing time (milliseconds since the epoch): what has expired by then is not stored.
    """

    subtask_index: int
    parallelism: int
    max_parallelism: int
    hash: str
    states: tuple[StateCut, ...] = ()
    in_flight: tuple[InFlightElement, ...] = ()
    operator_states: tuple[OperatorStateCut, ...] = ()
    watermark: int | None = None
    emitted: int = 0
    wall_time: int = 0

    @property
    def key_groups(self) -> KeyGroupRange:
        """The key groups that the subtask owns."""
        return range_of(self.subtask_index, self.parallelism, self.max_parallelism)
