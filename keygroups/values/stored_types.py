"""Which types the columns of Parquet files can have."""

from __future__ import annotations

from functools import cache

import pyarrow as pa
from pyarrow import types

from keygroups.values.zones import zone_of


def reason_against(type_: pa.DataType) -> str | None:
    """Return why no Parquet file can hold a column of a type, or why its values could not be read again.

    Without this check, a state would take values for hours, until its first snapshot fails.

    Parameters
    ----------
    type_ : pyarrow.DataType
        The type of a column.

    Examples
    --------
    >>> reason_against(pa.int64())
    >>> reason_against(pa.list_(pa.struct([])))
    'a struct without fields has no column: declare its fields'
    """
    reason = _reason_against_one(type_)
    if reason is not None or types.is_dictionary(type_):
        return reason
    inner = (reason_against(type_.field(index).type) for index in range(type_.num_fields))
    return next((reason for reason in inner if reason is not None), None)


def _reason_against_one(type_: pa.DataType) -> str | None:
    if types.is_interval(type_) or types.is_union(type_) or types.is_run_end_encoded(type_):
        return "Parquet has no such type"
    if types.is_dictionary(type_) and not _is_text_or_bytes(type_.value_type):
        return f"Parquet reads dictionaries of text and bytes only: declare it as {type_.value_type}"
    if types.is_struct(type_) and not type_.num_fields:
        return "a struct without fields has no column: declare its fields"
    if types.is_struct(type_) and len({field.name for field in type_}) < type_.num_fields:
        return "two fields of a struct have one name, which no dict has: rename one"
    if types.is_fixed_size_binary(type_) and not type_.byte_width:
        return "values without bytes have no column: declare it as pyarrow.binary()"
    if types.is_fixed_size_list(type_) and not _reads_null_in_lists_of_fixed_size():
        # A deletion is stored as null, so that values without null are no way out.
        return f"pyarrow {pa.__version__} cannot read null as such a list: install 26, or declare a list without a size"
    if types.is_decimal(type_) and type_.scale < 0:
        return "decimals of Parquet have no negative scale: declare a scale of 0"
    if types.is_timestamp(type_) and type_.tz is not None and not _is_zone(type_.tz):
        return f"the time zone {type_.tz!r} is not known here"
    return None


def _is_text_or_bytes(type_: pa.DataType) -> bool:
    is_text = types.is_string(type_) or types.is_large_string(type_)
    return bool(is_text or types.is_binary(type_) or types.is_large_binary(type_))


@cache
def _reads_null_in_lists_of_fixed_size() -> bool:
    from pyarrow import parquet  # few need it, and loading it takes time

    written = pa.BufferOutputStream()
    parquet.write_table(pa.table({"value": pa.array([None], pa.list_(pa.int8(), 1))}), written)
    try:
        parquet.read_table(pa.BufferReader(written.getvalue()))
    except pa.ArrowInvalid:
        return False
    return True


def _is_zone(name: str) -> bool:
    try:
        zone_of(name)
    except Exception:  # noqa: BLE001 - pyarrow raises errors of pytz, or of zoneinfo without that
        return False
    return True
