"""The outputs of an epoch as the content of a file."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from typing import Any

from async_op.connectors.arrow import batches_of, names_of, schema_of
from async_op.connectors.errors import UnwritableValue
from keygroups.values.scalars import Refusal
from keygroups.values.texts import cell_of, csv_line, json_of

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
            return b"".join(_json(value, index) for index, value in enumerate(values))
        case "csv":
            return _csv(values)
        case _:
            return _parquet(values, schema)


def _json(value: Any, index: int) -> bytes:
    try:
        return json_of(value).encode() + b"\n"
    except Refusal as refusal:
        raise _unwritable(value, refusal, index, refusal.path.removeprefix(".")) from None


def _csv(values: Sequence[Any]) -> bytes:
    names = names_of(values)
    lines = [csv_line(names)] if names else []
    for index, value in enumerate(values):
        cells: dict[str, str | None] = {}
        for name, field in value.items():
            try:
                cells[name] = cell_of(field)
            except Refusal as refusal:
                raise _unwritable(value, refusal, index, name) from None
        lines.append(csv_line(map(cells.get, names)))
    try:
        return "".join(lines).encode()
    except UnicodeEncodeError:
        index, name = next(_without_encoding(values))
        half = Refusal("it holds half of a surrogate pair, which UTF-8 cannot encode")
        raise _unwritable(values[index], half, index, name) from None


def _without_encoding(values: Sequence[Any]) -> Iterator[tuple[int, str]]:
    """Yield the places of text, also in names, that UTF-8 cannot encode."""
    for index, value in enumerate(values):
        for name, field in value.items():
            if not all(map(_is_text, (name, cell_of(field) or ""))):
                yield index, name


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _unwritable(value: Any, refusal: Refusal, index: int, column: str) -> UnwritableValue:
    return UnwritableValue(value, refusal.reason, column=column or None, index=index)


def _parquet(values: Sequence[Any], schema: Any) -> bytes:
    from pyarrow import parquet

    if schema is None:
        schema = schema_of(values, partial=True)
        _check_structs(schema, values)
    content = io.BytesIO()
    with parquet.ParquetWriter(content, schema) as writer:
        for batch in batches_of(values, schema):
            writer.write_batch(batch)
    return content.getvalue()


def _check_structs(schema: Any, values: Sequence[Any]) -> None:
    """Raise for a column of dicts that are all empty, for which Parquet has no type."""
    for field in schema:
        if _has_empty_struct(field.type):
            index = next(index for index, value in enumerate(values) if value.get(field.name) is not None)
            reason = "it is or holds a dict that is empty in all rows, so it has no fields; pass a schema"
            raise UnwritableValue(values[index], reason, column=field.name, index=index)


def _has_empty_struct(type_: Any) -> bool:
    from pyarrow import types

    if types.is_struct(type_) and not type_.num_fields:
        return True
    return any(_has_empty_struct(type_.field(at).type) for at in range(type_.num_fields))
