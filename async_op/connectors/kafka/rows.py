"""Rows of a DataFrame as records."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from async_op.connectors.errors import UnwritableValue

PARTS = ("value", "key", "headers")
"""What a record has; only the value is needed."""


def check_columns(schema: pa.Schema) -> None:
    """Check that rows with these columns are records, by name and type.

    Raises
    ------
    UnwritableValue
        There is no value, a column is no part of a record, or the type of one is that of none.
    """
    row = dict.fromkeys(schema.names)
    if "value" not in row:
        raise UnwritableValue(row, "there is no column 'value'")
    for name, kind in zip(schema.names, schema.types, strict=True):
        if name not in PARTS:
            raise UnwritableValue(row, f"the column {name!r} is none of {', '.join(PARTS)}")
        if name == "headers" and not _can_be_headers(kind):
            reason = "neither array<struct<key: string, value: binary>> nor map<string, binary>"
            raise UnwritableValue(row, f"the column 'headers' is {reason}")
        if name != "headers" and not _can_be_sent(kind):
            raise UnwritableValue(row, f"the column {name!r} is neither binary nor string")


def record_of(row: dict[str, Any]) -> dict[str, Any]:
    """Return what a job would pass for a row, whose headers are structs in Spark."""
    headers = row.get("headers")
    return row | {"headers": [_header_of(header) for header in headers]} if isinstance(headers, list) else row


def _header_of(header: Any) -> Any:
    is_struct = isinstance(header, dict) and header.keys() == {"key", "value"}
    return (header["key"], header["value"]) if is_struct else header


def _can_be_headers(kind: pa.DataType) -> bool:
    if pa.types.is_map(kind):
        return kind.key_type == pa.string() and _can_be_sent(kind.item_type)
    if not pa.types.is_list(kind) or not pa.types.is_struct(kind.value_type):
        return False
    types = {field.name: field.type for field in kind.value_type}
    return types.keys() == {"key", "value"} and types["key"] == pa.string() and _can_be_sent(types["value"])


def _can_be_sent(kind: pa.DataType) -> bool:
    return kind in {pa.binary(), pa.string()}
