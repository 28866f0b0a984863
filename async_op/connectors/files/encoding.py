"""The outputs of an epoch as the content of a file."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from datetime import date, datetime, time
from typing import Any

from async_op.connectors.arrow import batches_of, names_of, schema_of
from async_op.connectors.errors import UnwritableValue
from keygroups.csv_rows import CsvWriter

FORMATS = {"json": "jsonl", "csv": "csv", "parquet": "parquet"}
"""The formats, and how the names of their files end."""


def encode(values: Sequence[Any], format: str, schema: Any = None) -> bytes:
    """Return the content of a file.

    Raises
    ------
    UnwritableValue
        An output does not fit into the format.
    """
    match format:
        case "json":
            return b"".join(_json(value) for value in values)
        case "csv":
            return _csv(values)
        case _:
            return _parquet(values, schema)


def _json(value: Any) -> bytes:
    try:
        return json.dumps(value, allow_nan=False, ensure_ascii=False, default=_text_of).encode() + b"\n"
    except (TypeError, ValueError) as error:
        raise UnwritableValue(value, f"it is no JSON: {error}") from error


def _text_of(value: Any) -> str:
    if isinstance(value, date | datetime | time):
        return value.isoformat()
    raise TypeError(f"{type(value).__name__} has no form in JSON")


def _csv(values: Sequence[Any]) -> bytes:
    names = names_of(values)
    text = io.StringIO(newline="")
    writer = CsvWriter(text)
    writer.writerow(names)
    for value in values:
        if nested := [name for name, field in value.items() if isinstance(field, dict | list | tuple | set)]:
            raise UnwritableValue(value, f"{nested[0]!r} is nested, and CSV is flat")
        writer.writerow([_field(value.get(name)) for name in names])
    return text.getvalue().encode()


def _field(field: Any) -> Any:
    return field.isoformat() if isinstance(field, date | datetime | time) else field


def _parquet(values: Sequence[Any], schema: Any) -> bytes:
    from pyarrow import parquet

    schema = schema_of(values, partial=True) if schema is None else schema
    content = io.BytesIO()
    with parquet.ParquetWriter(content, schema) as writer:
        for batch in batches_of(values, schema):
            writer.write_batch(batch)
    return content.getvalue()
