"""Converts in-flight elements to Arrow rows and back.

Keys, values and outputs are columns of their own types wherever these are known or can be inferred, so that any program
reads them. A column returns each of them as it was, or does not hold it: then the whole column is msgpack, or, where
the type was declared, only what does not fit.
"""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Sequence
from functools import reduce
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import types

from keygroups.codec import pack, unpack
from keygroups.safe_text import described, printable, repr_of
from keygroups.state.timers import Timer
from keygroups.values import exact_column, inferred_array, values_of
from keygroups.values.scalars import Refusal
from snapshots.format import compute as pc
from snapshots.format.columns import PACKED, is_packed
from snapshots.format.parquet import KEY_GROUP
from snapshots.format.subtask import ElementTypes, InFlightElement, RefusedValue

REST = "rest"
"""The column with what the typed columns of a row do not hold, as msgpack of a dict by the names of these columns."""

TYPED = ("key", "value", "outputs")
"""The columns whose types depend on the content of a file."""

_TIMERS = ("processing_time_timer", "event_time_timer")
"""The kinds of timers; the index is whether they are in event time."""

_REFUSED = "refused"
"""The kind of a record without a usable value; in place of the value it has a text and the reason."""

_WHERE = "an element in flight"

_shortener = reprlib.Repr()

_PLAIN_FIELDS = [
    pa.field(KEY_GROUP, pa.int32(), False),
    pa.field("channel", pa.int32(), False),
    pa.field("sequence", pa.int64(), False),
    pa.field("kind", pa.string(), False),
    pa.field("completed", pa.bool_(), False),
    pa.field("element_id", pa.string(), False),
    pa.field("attempt", pa.int32(), False),
    pa.field("remaining", pa.float64()),
    pa.field("delay", pa.float64()),
    pa.field("timestamp", pa.int64()),
]

_NAMES = frozenset({*(field.name for field in _PLAIN_FIELDS), *TYPED, REST})


def in_flight_schema(key: pa.DataType | None, value: pa.DataType | None, outputs: pa.DataType | None) -> pa.Schema:
    """Return the columns of elements; None stands for msgpack."""
    return _schema([_field(name, type_) for name, type_ in zip(TYPED, (key, value, outputs), strict=True)])


def _schema(typed: Sequence[pa.Field]) -> pa.Schema:
    return pa.schema([*_PLAIN_FIELDS, *typed, _field(REST, None)])


def _field(name: str, type_: pa.DataType | None) -> pa.Field:
    return pa.field(name, pa.binary(), metadata=PACKED) if type_ is None else pa.field(name, type_)


def in_flight_table(elements: Iterable[InFlightElement], known: ElementTypes) -> pa.Table:
    """Encode elements as rows, sorted by key group and, within a key group, in queue order.

    An element whose value or outputs cannot be stored is stored with a `RefusedValue`, so a restore fails it by its
    error policy, and calls for the others. One such element must not stop each snapshot of all others.
    """
    given = [*elements]
    try:
        table = _table(given, known)
    except Exception:  # noqa: BLE001 - a codec of the user's may fail in any way
        table = _table([*map(_storable, given)], known)
    # Not the elements are sorted, which would then be read across the whole memory, but the columns.
    order = np.lexsort([table.column(name).to_numpy() for name in ("sequence", "channel", KEY_GROUP)])
    return pc.take(table, order)


def in_flight_elements(table: pa.Table) -> list[InFlightElement]:
    """Decode the rows of `in_flight_table`."""
    columns: dict[str, Sequence[Any]] = {field.name: table.column(field.name).to_pylist() for field in _PLAIN_FIELDS}
    keys, values, outputs = (decoded(table, name) for name in TYPED)
    kinds, timestamps = columns["kind"], columns["timestamp"]
    is_watermark = [kind == "watermark" for kind in kinds]
    if not {"record", "watermark"}.issuperset(kinds):
        values = [*map(_value_of, kinds, values, timestamps)]
        timestamps = [None if kind == _TIMERS[0] else at for kind, at in zip(kinds, timestamps, strict=True)]
    rows = zip(
        *(columns["channel"], columns["sequence"], is_watermark, columns["completed"], values, timestamps, keys),
        *(columns[KEY_GROUP], columns["element_id"], columns["attempt"], columns["remaining"], columns["delay"]),
        (None if one is None else tuple(one) for one in outputs),
        strict=True,
    )
    return [*map(InFlightElement._make, rows)]


def decoded(table: pa.Table, name: str) -> list[Any]:
    """Return the keys, values or outputs of elements as they were; a struct of keys stands for tuples."""
    field = table.schema.field(name)
    found = values_of(table.column(name))
    if is_packed(field):
        return [None if value is None else unpack(value) for value in found]
    if name == "key" and types.is_struct(field.type):
        found = [None if key is None else tuple(key.values()) for key in found]
    if REST in table.schema.names and table.column(REST).null_count < table.num_rows:
        rest = [None if one is None else unpack(one) for one in table.column(REST).to_pylist()]
        found = [one[name] if one and name in one else value for one, value in zip(rest, found, strict=True)]
    return found


def common_schema(schemas: Iterable[pa.Schema]) -> pa.Schema:
    """Return the columns in which the elements of several files fit: where their types differ, as msgpack."""
    found = reduce(_common, schemas, in_flight_schema(pa.null(), pa.null(), pa.null()))
    # Only Arrow knows columns of nulls.
    return _schema(
        [_field(name, None) if types.is_null(found.field(name).type) else found.field(name) for name in TYPED]
    )


def in_common_schema(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return elements in columns that `common_schema` has found for them."""
    schema = pa.schema([field for field in schema if field.name in _NAMES])
    for name in TYPED:
        if is_packed(schema.field(name)) and not is_packed(table.schema.field(name)):
            at = table.schema.get_field_index(name)
            table = table.set_column(at, schema.field(name), _packed(decoded(table, name)))
    if REST not in table.schema.names:
        table = table.append_column(schema.field(REST), pa.nulls(table.num_rows, pa.binary()))
    return table.cast(schema)


def _common(one: pa.Schema, other: pa.Schema) -> pa.Schema:
    return in_flight_schema(*(_common_column(one.field(name), other.field(name)) for name in TYPED))


def _common_column(one: pa.Field, other: pa.Field) -> pa.DataType | None:
    """Return the type in which two columns fit; None for msgpack."""
    if is_packed(one) or is_packed(other):
        return None
    try:
        return _common_type(one.type, other.type)
    except Refusal:
        return None


def _common_type(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    """Return the type of which both are, but for fields that are null in all rows; else raise `Refusal`."""
    if one == other or types.is_null(other):
        return one
    if types.is_null(one):
        return other
    if types.is_list(one) and types.is_list(other):
        return pa.list_(_common_type(one.value_type, other.value_type))
    if types.is_struct(one) and types.is_struct(other) and [*_names(one)] == [*_names(other)]:
        pairs = zip(one, other, strict=True)
        return pa.struct([(field.name, _common_type(field.type, same.type)) for field, same in pairs])
    raise Refusal("the types differ")


def _names(type_: pa.StructType) -> Iterable[str]:
    return (field.name for field in type_)


def _table(given: Sequence[InFlightElement], known: ElementTypes) -> pa.Table:
    if not given:
        return in_flight_schema(pa.null(), pa.null(), pa.null()).empty_table()
    columns: dict[str, Sequence[Any]] = dict(zip(InFlightElement._fields, zip(*given, strict=True), strict=True))
    columns["kind"] = kinds = [*map(_kind_of, given)]
    values: Sequence[Any] = columns["value"]
    if not {"record"}.issuperset(kinds):
        values = [*map(_stored_value, values)]
        columns["timestamp"] = [*map(_timestamp_of, given)]
    outputs = [None if one is None else list(one) for one in columns["outputs"]]
    rest: dict[int, dict[str, Any]] = {}
    types_of_outputs = None if known.output is None else pa.list_(known.output)
    typed = [
        _column("key", columns["key"], _key_structs(columns["key"], known.key), known.key, rest),
        _column("value", values, _usable(kinds, values), known.value, rest),
        _column("outputs", outputs, outputs, types_of_outputs, rest),
    ]
    packed = [pack(rest[row], _WHERE) if row in rest else None for row in range(len(given))] if rest else None
    arrays = [
        *(pa.array(columns[field.name], field.type) for field in _PLAIN_FIELDS),
        *(array for _, array in typed),
        pa.nulls(len(given), pa.binary()) if packed is None else pa.array(packed, pa.binary()),
    ]
    return pa.Table.from_arrays(arrays, schema=_schema([field for field, _ in typed]))


def _column(
    name: str, stored: Sequence[Any], typed: Sequence[Any], known: pa.DataType | None, rest: dict[int, dict[str, Any]]
) -> tuple[pa.Field, pa.Array]:
    """Return a column of its own type, or of msgpack if there is none.

    Parameters
    ----------
    name : str
        The name of the column.
    stored, typed : sequence
        The values, and what a column of their type has in their place; None where they are not of this type.
    known : pyarrow.DataType or None
        The type; None if it has to be inferred.
    rest : dict
        Gets by row what the column does not hold.
    """
    try:
        array, unfit = (inferred_array(typed), ()) if known is None else exact_column(typed, known)
    except Refusal:
        return _field(name, None), _packed(stored)
    for row in unfit:
        rest.setdefault(row, {})[name] = stored[row]
    if typed is not stored:
        for row, value in enumerate(stored):
            if typed[row] is None and value is not None:
                rest.setdefault(row, {})[name] = value
    return _field(name, array.type), array


def _packed(values: Iterable[Any]) -> pa.Array:
    return pa.array([None if value is None else pack(value, _WHERE) for value in values], pa.binary())


def _key_structs(keys: Sequence[Any], known: pa.DataType | None) -> Sequence[Any]:
    """Return keys of several columns as dicts, by which columns hold structs."""
    first = next((key for key in keys if key is not None), None)
    if type(first) is not tuple:
        return keys
    is_named = known is not None and types.is_struct(known)
    names = [*_names(known)] if is_named else [f"_{number}" for number in range(1, len(first) + 1)]
    return [dict(zip(names, key, strict=True)) if _is_tuple_of(key, len(names)) else key for key in keys]


def _is_tuple_of(key: Any, count: int) -> bool:
    return type(key) is tuple and len(key) == count


def _usable(kinds: Sequence[str], values: Sequence[Any]) -> Sequence[Any]:
    """Return the values with None in place of each refused one, which has another type than the others."""
    if _REFUSED not in kinds:
        return values
    return [None if kind == _REFUSED else value for kind, value in zip(kinds, values, strict=True)]


def _storable(element: InFlightElement) -> InFlightElement:
    """Return an element that msgpack holds: as it is, or with a `RefusedValue`."""
    what = "value" if element.outputs is None else "outputs"
    try:
        where = f"the in-flight element {element.element_id!r}"
        pack(_stored_value(element.value), where)
        pack(None if element.outputs is None else list(element.outputs), where)
    except Exception as error:  # noqa: BLE001 - a codec of the user's may fail in any way
        text = repr_of(element.value if element.outputs is None else element.outputs, _shortener.repr)
        refused = RefusedValue(text, f"its {what} could not be stored: {described(error)}")
        return element._replace(value=refused, completed=False, outputs=None)
    return element


def _stored_value(value: Any) -> Any:
    if isinstance(value, RefusedValue):
        return [printable(value.text), printable(value.reason)]
    return None if isinstance(value, Timer) else value


def _timestamp_of(element: InFlightElement) -> int | None:
    return element.value.timestamp if isinstance(element.value, Timer) else element.timestamp


def _kind_of(element: InFlightElement) -> str:
    if isinstance(element.value, RefusedValue):
        return _REFUSED
    if isinstance(element.value, Timer):
        return _TIMERS[element.value.event_time]
    return "watermark" if element.is_watermark else "record"


def _value_of(kind: str, value: Any, timestamp: int) -> Any:
    """Return the value of an element from its stored form."""
    if kind == _REFUSED:
        return RefusedValue(*value)
    return Timer(timestamp, kind == _TIMERS[True]) if kind in _TIMERS else value
