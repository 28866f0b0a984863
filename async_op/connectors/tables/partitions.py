"""Which values the partition columns of a table keep: there a value is text, and a part of the names of folders."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import quote

import pyarrow as pa

from async_op.connectors.epoch_rows import Check
from keygroups.values import Misfit

_NAME_BYTES_MAX = 255
"""How long the name of a folder may be on nearly all file systems."""


def partition_check(columns: Sequence[str], reason_against: Callable[[Any], str | None]) -> Check:
    """Return the check of a table's partition columns.

    Parameters
    ----------
    columns : sequence of str
        The partition columns.
    reason_against : callable
        Returns why the package that writes the table does not keep a value, or None.
    """
    names = frozenset(columns)

    def check(batch: pa.RecordBatch) -> None:
        # A batch has no column by the name of a field inside a struct, such as `place.city`.
        for name in names.intersection(batch.schema.names):
            for value in {*batch.column(name).to_pylist()} - {None}:
                if reason := reason_against(value) or _reason_of_length(name, value):
                    raise Misfit(0, name, f"in a partition column, {reason}")

    return check


def _reason_of_length(name: str, value: Any) -> str | None:
    if isinstance(value, str) and len(quote(f"{name}={value}")) > _NAME_BYTES_MAX:
        return f"a value has at most the {_NAME_BYTES_MAX} bytes of a folder's name, and this one needs more"
    return None
