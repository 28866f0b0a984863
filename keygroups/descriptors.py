"""Declarations of state: name, kind and, optionally, Arrow type and, with keys, time to live."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias, get_args

from keygroups.arguments import check_callable, check_choice
from keygroups.errors import ConfigError
from keygroups.names import OPERATOR_STATE_NAME, STATE_NAME
from keygroups.representation import fields_repr
from keygroups.ttl import StateTtl, Ttl, ttl_of

if TYPE_CHECKING:
    import pyarrow as pa


class _Declaration:
    """The base of all kinds of state declarations."""

    __slots__ = ()

    name: str
    type: pa.DataType | None
    ttl: Ttl
    calls: ClassVar[Mapping[str, int]] = {}
    """The names of the parameters that must be callable, each with the number of its arguments."""

    def __post_init__(self) -> None:
        STATE_NAME.check("name", self.name)
        if self.type is not None:
            _check_type(self.type)
        for name, arguments in self.calls.items():
            check_callable(name, getattr(self, name), arguments, reason=f"state {self.name!r} is computed by it")
        object.__setattr__(self, "ttl", ttl_of(self.ttl))

    @property
    def value_type(self) -> pa.DataType | None:
        """The Arrow type of a stored value, element or accumulator; None for msgpack."""
        return self.type

    @property
    def time_to_live(self) -> StateTtl | None:
        """The declared `ttl`; None if values live for ever."""
        return ttl_of(self.ttl)


def _check_type(type: object) -> None:
    import pyarrow as pa  # a caller with a type has already loaded it

    from keygroups.values.stored_types import reason_against

    if not isinstance(type, pa.DataType):
        raise ConfigError("type", type, "pass a pyarrow type, such as pa.int64(), or None")
    if (reason := reason_against(type)) is not None:
        raise ConfigError("type", str(type), reason)


@dataclass(frozen=True, slots=True)
class ValueState(_Declaration):
    """One value per key.

    Parameters
    ----------
    name : str
        Unique within a function: letters, digits and underscores.
    type : pyarrow.DataType, optional
        The type of the Parquet column for the value; without it the value is stored as msgpack in a binary column.
    default : object, optional
        What `value()` returns for a key without a value; if the default is mutable, a copy of it.
    ttl : StateTtl, float or timedelta, optional
        How long the value lives; a number means seconds since the last write. By default it lives for ever.

    Raises
    ------
    ConfigError
        The name cannot be part of a file name, or another argument is invalid.

    Examples
    --------
    >>> import pyarrow as pa
    >>> ValueState("visits", pa.int64(), default=0).name
    'visits'
    """

    kind: ClassVar[str] = "value"

    name: str
    type: pa.DataType | None = None
    default: object = None
    ttl: Ttl = None

    __repr__ = fields_repr


@dataclass(frozen=True, slots=True)
class ListState(_Declaration):
    """A list per key. The cost of adding an element does not depend on the list's length, in memory or in a snapshot.

    Parameters
    ----------
    name : str
        Unique within a function: letters, digits and underscores.
    type : pyarrow.DataType, optional
        The type of one element; without it elements are msgpack.
    ttl : StateTtl, float or timedelta, optional
        How long an element lives; a number means seconds since it was written. By default it lives for ever.

    Raises
    ------
    ConfigError
        The name cannot be part of a file name, or another argument is invalid.

    Examples
    --------
    >>> import pyarrow as pa
    >>> ListState("clicks", pa.timestamp("ms")).kind
    'list'
    """

    kind: ClassVar[str] = "list"

    name: str
    type: pa.DataType | None = None
    ttl: Ttl = None

    __repr__ = fields_repr


@dataclass(frozen=True, slots=True)
class MapState(_Declaration):
    """A mapping per key. The cost of writing an entry does not depend on their number, in memory or in a snapshot.

    The keys of the mapping may have the same types as keys of state. They are stored in the same way and need no
    declaration.

    Parameters
    ----------
    name : str
        Unique within a function: letters, digits and underscores.
    type : pyarrow.DataType, optional
        The type of the values, or `pa.map_(key, value)` to declare the keys as well. Without it values are msgpack.
        If the values are mappings too, declare a map of maps.
    ttl : StateTtl, float or timedelta, optional
        How long a value lives; a number means seconds since it was written. By default it lives for ever.

    Raises
    ------
    ConfigError
        The name cannot be part of a file name, or another argument is invalid.

    Examples
    --------
    >>> import pyarrow as pa
    >>> MapState("prices", pa.map_(pa.string(), pa.float64())).value_type
    DataType(double)
    """

    kind: ClassVar[str] = "map"

    name: str
    type: pa.DataType | None = None
    ttl: Ttl = None

    __repr__ = fields_repr

    @property
    def value_type(self) -> pa.DataType | None:
        """The Arrow type of a value; None for msgpack."""
        return getattr(self.type, "item_type", self.type)

    @property
    def key_type(self) -> pa.DataType | None:
        """The Arrow type of the mapping's keys; None if keys of any type are allowed."""
        return getattr(self.type, "key_type", None)


@dataclass(frozen=True, slots=True)
class ReducingState(_Declaration):
    """One value per key, with which each added value is combined.

    Parameters
    ----------
    name : str
        Unique within a function: letters, digits and underscores.
    reduce : callable
        Called with the current value and the added one; returns the new value.
    type : pyarrow.DataType, optional
        The type of the value; without it the value is msgpack.
    ttl : StateTtl, float or timedelta, optional
        How long the value lives; a number means seconds since the last write. By default it lives for ever.

    Raises
    ------
    ConfigError
        The name cannot be part of a file name, or another argument is invalid.

    Examples
    --------
    >>> ReducingState("highest", max).reduce(1, 2)
    2
    """

    kind: ClassVar[str] = "reducing"
    calls: ClassVar[Mapping[str, int]] = {"reduce": 2}

    name: str
    reduce: Callable[[Any, Any], Any]
    type: pa.DataType | None = None
    ttl: Ttl = None

    __repr__ = fields_repr


@dataclass(frozen=True, slots=True)
class AggregatingState(_Declaration):
    """One accumulator per key, which collects added values and from which a result is computed.

    Parameters
    ----------
    name : str
        Unique within a function: letters, digits and underscores.
    create : callable
        Returns an empty accumulator.
    add : callable
        Called with the accumulator and the added value, in this order; returns the new accumulator. It may modify its
        argument and return that.
    result : callable
        Called with the accumulator; returns what `get()` returns.
    type : pyarrow.DataType, optional
        The type of the accumulator, because the accumulator is stored; without it the accumulator is msgpack.
    ttl : StateTtl, float or timedelta, optional
        How long the accumulator lives; a number means seconds since the last write. By default it lives for ever.

    Raises
    ------
    ConfigError
        The name cannot be part of a file name, or another argument is invalid.

    Examples
    --------
    >>> mean = AggregatingState("mean", lambda: (0, 0), lambda a, v: (a[0] + v, a[1] + 1), lambda a: a[0] / a[1])
    >>> mean.result(mean.add(mean.add(mean.create(), 1), 2))
    1.5
    """

    kind: ClassVar[str] = "aggregating"
    calls: ClassVar[Mapping[str, int]] = {"create": 0, "add": 2, "result": 1}

    name: str
    create: Callable[[], Any]
    add: Callable[[Any, Any], Any]
    result: Callable[[Any], Any]
    type: pa.DataType | None = None
    ttl: Ttl = None

    __repr__ = fields_repr


StateDescriptor: TypeAlias = ValueState | ListState | MapState | ReducingState | AggregatingState
"""The declaration of a keyed state of any kind."""

ListMode = Literal["split", "union"]
"""How a rescale redistributes the items of an `OperatorListState`."""


@dataclass(frozen=True, slots=True)
class OperatorListState:
    """A list of items that belongs to a subtask and not to a key, such as the partitions that it reads.

    Parameters
    ----------
    name : str
        Unique among all states of a function; it becomes part of a file name.
    type : pyarrow.DataType, optional
        The type that each item must fit. Items are stored as msgpack, with or without it.
    mode : {"split", "union"}
        What a restore does. "split": each subtask gets its items back; a rescale redistributes them evenly. "union":
        every subtask gets to see all items, and keeps those that "split" would give it.

    Raises
    ------
    ConfigError
        The name cannot be part of a file name, or another argument is invalid.

    Examples
    --------
    >>> OperatorListState("offsets").mode
    'split'
    """

    kind: ClassVar[str] = "list"

    name: str
    type: pa.DataType | None = None
    mode: ListMode = "split"

    def __post_init__(self) -> None:
        OPERATOR_STATE_NAME.check("name", self.name)
        if self.type is not None:
            _check_type(self.type)
        check_choice("mode", self.mode, get_args(ListMode))


@dataclass(frozen=True, slots=True)
class OperatorMapState:
    """A mapping of which every subtask has the same copy, such as rules; written in `open` only.

    Parameters
    ----------
    name : str
        Unique among all states of a function; it becomes part of a file name.
    type : pyarrow.DataType, optional
        The type that each value must fit, or `pa.map_(key, value)` for the keys as well. Entries are stored as msgpack,
        with or without it.

    Raises
    ------
    ConfigError
        The name cannot be part of a file name, or the type is invalid.

    Examples
    --------
    >>> OperatorMapState("rules").mode
    'broadcast'
    """

    kind: ClassVar[str] = "map"
    mode: ClassVar[Literal["broadcast"]] = "broadcast"

    name: str
    type: pa.DataType | None = None

    def __post_init__(self) -> None:
        OPERATOR_STATE_NAME.check("name", self.name)
        if self.type is not None:
            _check_type(self.type)

    @property
    def value_type(self) -> pa.DataType | None:
        """The Arrow type that each value must fit; None if values of any type are allowed."""
        return getattr(self.type, "item_type", self.type)

    @property
    def key_type(self) -> pa.DataType | None:
        """The Arrow type that each key must fit; None if keys of any type are allowed."""
        return getattr(self.type, "key_type", None)


OperatorStateDescriptor: TypeAlias = OperatorListState | OperatorMapState
"""The declaration of a state without a key."""
