"""Declarations of keyed state: its name, its kind and, if known, its Arrow type."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from keygroups.errors import ConfigError
from keygroups.ttl import StateTtl, Ttl, ttl_of

if TYPE_CHECKING:
    import pyarrow as pa

# A state's name is part of a file name in every snapshot.
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")


class _Declaration:
    """What all kinds of states have in common."""

    __slots__ = ()

    name: str
    type: pa.DataType | None
    ttl: Ttl

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ConfigError("name", self.name, "a state is named by letters, digits and underscores, 128 at most")
        object.__setattr__(self, "ttl", ttl_of(self.ttl))

    @property
    def value_type(self) -> pa.DataType | None:
        """The Arrow type of what is stored as a value, an element or an accumulator; None for msgpack."""
        return self.type

    @property
    def time_to_live(self) -> StateTtl | None:
        """The `ttl` that was given, None if values have no end."""
        return ttl_of(self.ttl)


@dataclass(frozen=True, slots=True)
class ValueState(_Declaration):
    """One value per key.

    Parameters
    ----------
    name : str
        Unique within a function: letters, digits and underscores.
    type : pyarrow.DataType, optional
        Stored as a Parquet column of this type; without it the value is msgpack in a binary column.
    default : object, optional
        What `value()` returns for a key that has none. Must not be changed by the function.
    ttl : StateTtl or float, optional
        How long the value lives; a number is the seconds since it was written. For ever without it.

    Raises
    ------
    ConfigError
        The name cannot be part of a file name, or the `ttl` is none.

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


@dataclass(frozen=True, slots=True)
class ListState(_Declaration):
    """A list per key. To add an element costs the same however long the list is, in memory and in a snapshot.

    Parameters
    ----------
    name : str
        Unique within a function: letters, digits and underscores.
    type : pyarrow.DataType, optional
        Of one element; without it elements are msgpack.
    ttl : StateTtl or float, optional
        How long an element lives; a number is the seconds since it was written. For ever without it.

    Raises
    ------
    ConfigError
        The name cannot be part of a file name, or the `ttl` is none.

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


@dataclass(frozen=True, slots=True)
class MapState(_Declaration):
    """A mapping per key. To write an entry costs the same however many there are, in memory and in a snapshot.

    The keys of the mapping are of the kinds that a key of state may have, and are stored as these are: they need no
    declaration.

    Parameters
    ----------
    name : str
        Unique within a function: letters, digits and underscores.
    type : pyarrow.DataType, optional
        Of the values, or `pa.map_(key, value)` to declare the keys as well. Without it values are msgpack. For
        values that are mappings themselves, declare a map of maps.
    ttl : StateTtl or float, optional
        How long a value lives; a number is the seconds since it was written. For ever without it.

    Raises
    ------
    ConfigError
        The name cannot be part of a file name, or the `ttl` is none.

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

    @property
    def value_type(self) -> pa.DataType | None:
        """The Arrow type of a value; None for msgpack."""
        return getattr(self.type, "item_type", self.type)

    @property
    def key_type(self) -> pa.DataType | None:
        """The Arrow type that the keys of the mapping must fit; None if any may be used."""
        return getattr(self.type, "key_type", None)


@dataclass(frozen=True, slots=True)
class ReducingState(_Declaration):
    """One value per key, into which each added value is reduced.

    Parameters
    ----------
    name : str
        Unique within a function: letters, digits and underscores.
    reduce : callable
        Called with the value so far and the added one; returns the new value.
    type : pyarrow.DataType, optional
        Of the value; without it the value is msgpack.
    ttl : StateTtl or float, optional
        How long the value lives; a number is the seconds since it was written. For ever without it.

    Raises
    ------
    ConfigError
        The name cannot be part of a file name, or the `ttl` is none.

    Examples
    --------
    >>> ReducingState("highest", max).reduce(1, 2)
    2
    """

    kind: ClassVar[str] = "reducing"

    name: str
    reduce: Callable[[Any, Any], Any]
    type: pa.DataType | None = None
    ttl: Ttl = None


@dataclass(frozen=True, slots=True)
class AggregatingState(_Declaration):
    """One accumulator per key, to which values are added and from which a result is made.

    Parameters
    ----------
    name : str
        Unique within a function: letters, digits and underscores.
    create : callable
        Returns an empty accumulator.
    add : callable
        Called with the accumulator and the added value, as `functools.reduce` calls; returns the new accumulator. It
        may change the one that it gets and return that.
    result : callable
        Called with the accumulator; returns what `get()` returns.
    type : pyarrow.DataType, optional
        Of the accumulator, which is what is stored; without it the accumulator is msgpack.
    ttl : StateTtl or float, optional
        How long the accumulator lives; a number is the seconds since it was written. For ever without it.

    Raises
    ------
    ConfigError
        The name cannot be part of a file name, or the `ttl` is none.

    Examples
    --------
    >>> mean = AggregatingState("mean", lambda: (0, 0), lambda a, v: (a[0] + v, a[1] + 1), lambda a: a[0] / a[1])
    >>> mean.result(mean.add(mean.add(mean.create(), 1), 2))
    1.5
    """

    kind: ClassVar[str] = "aggregating"

    name: str
    create: Callable[[], Any]
    add: Callable[[Any, Any], Any]
    result: Callable[[Any], Any]
    type: pa.DataType | None = None
    ttl: Ttl = None


StateDescriptor: TypeAlias = ValueState | ListState | MapState | ReducingState | AggregatingState
"""The declaration of a keyed state of any kind."""
