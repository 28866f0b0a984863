"""Which Python values a column of an Arrow type holds unchanged, and in which form Arrow takes them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, MappingView, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, repeat
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import types

from keygroups.representation import class_in_message
from keygroups.values.scalars import Kind, Refusal, items_of, kind_of


@dataclass(frozen=True, slots=True, eq=False)
class Rules:
    """What a column accepts besides values of its own Python type.

    In all rules a number fits a column of other numbers if it stays equal; a float may be rounded to a column of 16 or
    32 bits; a tuple or an array of NumPy is a list; pairs are a map; the scalars of NumPy and pandas are the Python
    values that they stand for.

    Attributes
    ----------
    missing_is_null : bool
        A field that a dict lacks is null in a struct; otherwise the dict is refused.
    naive_is_local : bool
        A naive datetime is a time in the column's zone, as in Spark; otherwise it does not fit a column with a zone.
    any_container : bool
        Tuples, rows and pairs are structs, and all iterables are lists, as in PySpark; a bytearray is binary.
    """

    missing_is_null: bool = False
    naive_is_local: bool = False
    any_container: bool = False


EXACT = Rules()
"""State: a value is read as it was written."""

TABLES = Rules(missing_is_null=True)
"""Rows of tables and files: a field that a row does not have is null."""

SPARK = Rules(missing_is_null=True, naive_is_local=True, any_container=True)
"""Outputs on Spark, which accepts what PySpark itself accepts unless a value would change."""


_NO_LISTS = (Iterator, Mapping, MappingView, str, bytes, bytearray, memoryview)
"""What can be iterated over, but is no list."""


def has_none(values: Iterable[Any]) -> bool:
    """Return whether a value is None; `in` would compare arrays of NumPy with it."""
    return type(None) in {*map(type, values)}


def column_of(rows: Iterable[dict[str, Any]], name: str) -> list[Any]:
    """Return what dicts have under a name; None where one lacks it."""
    return [*map(dict.get, rows, repeat(name))]


class Fitter(ABC):
    """Fits values to one type."""

    @abstractmethod
    def is_plain(self, values: Sequence[Any]) -> bool:
        """Return whether Arrow takes all values as they are; errors of Arrow, such as of a range, may still occur."""

    @abstractmethod
    def one(self, value: Any) -> Any:
        """Return a value, which is not None, in the form in which Arrow takes it, or raise `Refusal`."""

    def item(self, value: Any, step: str, *, nullable: bool = True) -> Any:
        """Return a value inside of another one in Arrow's form."""
        if value is None:
            if not nullable:
                raise Refusal("null in a field that is not nullable", step)
            return None
        try:
            return self.one(value)
        except Refusal as refusal:
            raise refusal.inside(step) from None


@lru_cache(maxsize=1024)
def fitter_of(type_: pa.DataType, rules: Rules) -> Fitter:
    """Return what fits values to a type."""
    if types.is_dictionary(type_):
        return fitter_of(type_.value_type, rules)
    if types.is_list(type_) or types.is_large_list(type_) or types.is_fixed_size_list(type_):
        return _Lists(type_, rules)
    if types.is_struct(type_):
        return _Structs(type_, rules)
    if types.is_map(type_):
        return _Maps(type_, rules)
    return _Scalars(kind_of(type_, naive_is_local=rules.naive_is_local, bytes_like=rules.any_container))


class _Scalars(Fitter):
    __slots__ = ("_bulk", "_kinds", "one")

    one: Callable[[Any], Any]  # type: ignore[assignment]

    def __init__(self, kind: Kind) -> None:
        self._kinds = kind.plain
        self._bulk = kind.bulk
        self.one = kind.one

    def is_plain(self, values: Sequence[Any]) -> bool:
        kinds = {*map(type, values)}
        is_whole = type(None) not in kinds
        kinds.discard(type(None))
        if not kinds <= self._kinds:
            return False
        if self._bulk is None or not kinds:
            return True
        return self._bulk(values if is_whole else [value for value in values if value is not None], kinds)


class _Lists(Fitter):
    def __init__(self, type_: pa.DataType, rules: Rules) -> None:
        self._items = fitter_of(type_.value_type, rules)
        self._nullable = type_.value_field.nullable
        self._item_type = type_.value_type
        self._size = type_.list_size if types.is_fixed_size_list(type_) else None
        self._any = rules.any_container

    def is_plain(self, values: Sequence[Any]) -> bool:
        kinds = {*map(type, values)} - {type(None)}
        lists = [value for value in values if value is not None]
        if kinds == {np.ndarray}:
            dtypes = {value.dtype for value in lists if value.ndim == 1}
            is_flat = all(value.ndim == 1 for value in lists)
            return is_flat and all(
                dtype.kind in "iuf" and pa.from_numpy_dtype(dtype) == self._item_type for dtype in dtypes
            )
        if not kinds <= {list, tuple}:
            return False
        items = list(chain.from_iterable(lists))
        return (self._nullable or not has_none(items)) and self._items.is_plain(items)

    def one(self, value: Any) -> Any:
        items = self._listed(value)
        if self._size is not None and len(items) != self._size:
            raise Refusal(f"it has not the {self._size} items of the column")
        item, nullable = self._items.item, self._nullable
        return [item(each, f"[{at}]", nullable=nullable) for at, each in enumerate(items)]

    def _listed(self, value: Any) -> Sequence[Any]:
        kind = type(value)
        if kind is list or kind is tuple:
            return value  # type: ignore[no-any-return]
        if kind is np.ndarray:
            return items_of(value)
        if self._any and isinstance(value, Iterable) and not isinstance(value, _NO_LISTS):
            return list(value)
        raise Refusal(f"it is a {class_in_message(kind)}, not a list")


class _Structs(Fitter):
    def __init__(self, type_: pa.StructType, rules: Rules) -> None:
        fields = [type_.field(index) for index in range(type_.num_fields)]
        self._fields = {field.name: (fitter_of(field.type, rules), field.nullable) for field in fields}
        self._are_distinct = len(self._fields) == len(fields)
        self._rules = rules

    def is_plain(self, values: Sequence[Any]) -> bool:
        structs = [value for value in values if value is not None]
        if not {*map(type, structs)} <= {dict} or not self._are_distinct:
            return False
        names = self._fields.keys()
        if self._rules.missing_is_null:
            if not {*chain.from_iterable(structs)} <= names:
                return False
        elif not all(struct.keys() == names for struct in structs):
            return False
        return all(self._is_plain(name, column_of(structs, name)) for name in names)

    def _is_plain(self, name: str, column: list[Any]) -> bool:
        fitter, nullable = self._fields[name]
        return (nullable or not has_none(column)) and fitter.is_plain(column)

    def one(self, value: Any) -> Any:
        if not self._are_distinct:
            raise Refusal("the struct has two fields of one name, which no dict has")
        struct = self._dict_of(value)
        names = self._fields.keys()
        if unknown := struct.keys() - names:
            raise Refusal(f"there is no field {min(unknown, key=str)!r}; the fields are {', '.join(names)}")
        if not self._rules.missing_is_null and (missing := names - struct.keys()):
            raise Refusal(f"the field {min(missing)!r} is missing; set it to None if it has no value")
        return {
            name: fitter.item(struct.get(name), f".{name}", nullable=nullable)
            for name, (fitter, nullable) in self._fields.items()
        }

    def _dict_of(self, value: Any) -> Mapping[Any, Any]:
        if type(value) is dict:
            return value
        if self._rules.any_container:
            if isinstance(value, Mapping):
                return value
            if isinstance(value, tuple) and len(value) == len(self._fields):
                return dict(zip(self._fields, value, strict=True))
            if isinstance(value, list) and all(isinstance(pair, tuple) and len(pair) == 2 for pair in value):
                pairs = dict(value)
                if len(pairs) == len(value):
                    return pairs
        raise Refusal(f"it is a {class_in_message(type(value))}, not a struct of {', '.join(self._fields)}")


class _Maps(Fitter):
    def __init__(self, type_: pa.MapType, rules: Rules) -> None:
        self._keys = fitter_of(type_.key_type, rules)
        self._items = fitter_of(type_.item_type, rules)
        self._nullable = type_.item_field.nullable
        self._any = rules.any_container
        self._has_nested_keys = types.is_nested(type_.key_type)

    def is_plain(self, values: Sequence[Any]) -> bool:
        maps = [value for value in values if value is not None]
        if self._has_nested_keys or not {*map(type, maps)} <= {dict}:
            return False
        keys = list(chain.from_iterable(maps))
        items = list(chain.from_iterable(map(dict.values, maps)))
        # Two keys of one dict may be one key of the column only if they are of two types, or rounded.
        return (
            len({*map(type, keys)}) <= 1
            and not {*map(type, keys)} & {float}
            and not has_none(keys)
            and (self._nullable or not has_none(items))
            and self._keys.is_plain(keys)
            and self._items.is_plain(items)
        )

    def one(self, value: Any) -> Any:
        pairs = self._pairs_of(value)
        entries = [
            (self._keys.item(key, ".key", nullable=False), self._items.item(item, ".value", nullable=self._nullable))
            for key, item in pairs
        ]
        if _has_doubles([key for key, _ in entries]):
            raise Refusal("it has a key twice")
        return entries

    def _pairs_of(self, value: Any) -> list[tuple[Any, Any]]:
        if self._has_nested_keys and not self._any and isinstance(value, dict):
            raise Refusal("its keys are lists, structs or maps, which no dict has when it is read: pass pairs")
        if type(value) is dict or (self._any and isinstance(value, Mapping)):
            return list(value.items())
        if isinstance(value, list) and all(isinstance(pair, tuple) and len(pair) == 2 for pair in value):
            return list(value)
        if self._any and isinstance(value, list) and all(_is_entry(entry) for entry in value):
            return [(entry["key"], entry["value"]) for entry in value]
        raise Refusal(f"it is a {class_in_message(type(value))}, not a map")


def _has_doubles(keys: list[Any]) -> bool:
    """Return whether two keys are equal; keys that Arrow has as lists, structs or maps have no hash."""
    try:
        return len(set(keys)) < len(keys)
    except TypeError:
        return len(set(map(_hashable, keys))) < len(keys)


def _hashable(key: Any) -> Any:
    if isinstance(key, dict):
        # The fields of all keys of one type have one order.
        return tuple((name, _hashable(item)) for name, item in key.items())
    return tuple(map(_hashable, key)) if isinstance(key, list | tuple) else key


def _is_entry(entry: Any) -> bool:
    return isinstance(entry, dict) and entry.keys() == {"key", "value"}
