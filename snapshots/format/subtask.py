"""The content of one subtask at a barrier, before it is stored: its keyed state and in-flight elements."""

from __future__ import annotations

import uuid
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pyarrow as pa

from keygroups.names import OPERATOR_STATE_NAME
from keygroups.ranges import KeyGroupRange, range_of
from keygroups.representation import fields_repr
from keygroups.state import StateCut
from snapshots.format.manifest_schema import OperatorStateMode

NO_KEY_GROUP = -1
"""The key group of an element without a key, and of a watermark."""


@dataclass(frozen=True, slots=True)
class RefusedValue:
    """What stands in place of a value that cannot be used: no call is made for it, and its element fails.

    A value that cannot be decoded is one from the beginning. A value that cannot be stored becomes one in a snapshot,
    so that one element stops neither the others nor the snapshot.

    Attributes
    ----------
    text : str
        The value as text, shortened, for reading.
    reason : str
        Why it cannot be used.
    """

    text: str
    reason: str


class InFlightElement(NamedTuple):
    """An element that the operator has accepted but not yet emitted.

    Attributes
    ----------
    channel : int
        The subtask whose queue held it; after a rescale, one queue may have elements of several channels.
    sequence : int
        Its position in that queue.
    is_watermark : bool
        Whether it is a watermark, which has only a timestamp.
    completed : bool
        Whether its call has returned: a restore emits `outputs`, and its writes are already in the state. If it has
        not returned, a restore makes the call again.
    value : object
        The input record.
    timestamp : int or None
        Milliseconds since the epoch.
    key : object
        The record's key; None for an operator without keys.
    key_group : int
        The key group of the key, or `NO_KEY_GROUP`.
    element_id : str
        What names it among the elements of its step; lineage, step and id make its idempotency key. It stays the same
        over retries, restarts and rescales.
    attempt : int
        The number of the attempt that runs or is due; 1 is the first.
    remaining : float or None
        The remaining time budget in seconds.
    delay : float or None
        The remaining backoff before that attempt, in seconds.
    outputs : tuple or None
        The outputs of a completed element; None while it is pending.
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

    def __repr__(self) -> str:
        return fields_repr(self)


@dataclass(frozen=True, slots=True)
class ElementTypes:
    """The types of what elements in flight hold, as far as they are known; others are inferred from each part.

    Attributes
    ----------
    value, key, output : pyarrow.DataType or None
        The types of values, keys and single outputs. A struct of keys stands for tuples. Their fields become nullable:
        a watermark, or a row that does not fit, is a null struct, and Parquet then has a null in each of its fields.
    """

    value: pa.DataType | None = None
    key: pa.DataType | None = None
    output: pa.DataType | None = None

    def __post_init__(self) -> None:
        for name in ("value", "key", "output"):
            object.__setattr__(self, name, _nullable(getattr(self, name)))


def _nullable(type_: Any) -> Any:
    """Return a type whose structs have no field that must not be null."""
    if type_ is None or not pa.types.is_nested(type_):
        return type_
    if pa.types.is_struct(type_):
        return pa.struct([pa.field(one.name, _nullable(one.type), metadata=one.metadata) for one in type_])
    if pa.types.is_list(type_):
        return pa.list_(_nullable(type_.value_type))
    if pa.types.is_map(type_):
        return pa.map_(type_.key_type, _nullable(type_.item_type))
    return type_


UNKNOWN_TYPES = ElementTypes()


@dataclass(frozen=True, slots=True)
class OperatorStateCut:
    """The items of a state that belongs to a subtask rather than to a key.

    Attributes
    ----------
    name : str
        The name of the state.
    mode : {"split", "union", "broadcast"}
        How a rescale redistributes the items. "split": each item goes to one subtask. "union": all items go to every
        subtask. "broadcast": every subtask gets one of the copies, which are identical.
    items : tuple
        The items, in order.

    Raises
    ------
    ConfigError
        The name cannot be part of a file name.
    """

    name: str
    mode: OperatorStateMode
    items: tuple[object, ...]

    __repr__ = fields_repr

    def __post_init__(self) -> None:
        OPERATOR_STATE_NAME.check("name", self.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class SubtaskSnapshot:
    """The state of one subtask at a barrier.

    Attributes
    ----------
    subtask_index, parallelism, max_parallelism : int
        The index of the subtask, the number of subtasks, and the number of key groups.
    hash : str
        The name of the hash that maps keys to key groups.
    states : tuple of StateCut
        The keyed state.
    in_flight : tuple of InFlightElement
        The in-flight elements in queue order.
    operator_states : tuple of OperatorStateCut
        The state without a key.
    watermark : int or None
        The newest watermark that was emitted.
    emitted : int
        How many times the operator had called `output` since it was opened.
    wall_time : int
        The processing time (milliseconds since the epoch): values that have expired by then are not stored.
    lineage : str or None
        The first part of the idempotency keys of its elements; None for what has none.
    element_types : ElementTypes
        The types of the elements' columns.
    barrier_id : str
        A unique id of the barrier. It is used if there is no keyed state, whose cuts have their own id.
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
    lineage: str | None = None
    element_types: ElementTypes = UNKNOWN_TYPES
    barrier_id: str = field(default_factory=lambda: uuid.uuid4().hex)

    __repr__ = fields_repr

    @property
    def cut_id(self) -> str:
        """The id of the barrier: the id of the keyed state's cuts if there are any, else `barrier_id`."""
        return self.states[0].cut_id if self.states else self.barrier_id

    @property
    def key_groups(self) -> KeyGroupRange:
        """The key groups that the subtask owns."""
        return range_of(self.subtask_index, self.parallelism, self.max_parallelism)
