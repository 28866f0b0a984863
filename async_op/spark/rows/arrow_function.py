"""Functions that take and return whole record batches, without a Python object for each row."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa

from async_op.context import InvocationContext
from async_op.functions import AsyncBatchFunction, AsyncFunction, Function
from async_op.runtime import Runtime
from async_op.spark.rows.arrow_outputs import OutputWriter
from keygroups.errors import ConfigError


class ArrowFunction(AsyncFunction):
    """A function of record batches as the operator sees it: each batch is one element with one output.

    Parameters
    ----------
    function : AsyncBatchFunction
        The user's function, with `arrow = True`.
    writer : OutputWriter
        Checks the batches that it returns.
    """

    def __init__(self, function: AsyncBatchFunction, writer: OutputWriter) -> None:
        self._function = function
        self._writer = writer

    async def open(self, runtime: Runtime) -> None:
        """Open the function."""
        await self._function.open(runtime)

    async def async_invoke(self, value: pa.RecordBatch, ctx: InvocationContext) -> list[pa.RecordBatch]:
        """Invoke the function for a batch."""
        invoke: Any = self._function.async_invoke_batch
        return [self._writer.fit(await invoke(value, ctx))]

    async def timeout(self, value: pa.RecordBatch, ctx: InvocationContext) -> list[pa.RecordBatch]:
        """Ask the function for the fallback of a batch that timed out."""
        return [self._writer.fit(await self._function.timeout(value, ctx))]

    async def close(self) -> None:
        """Close the function."""
        await self._function.close()


def recut(batches: Iterable[pa.RecordBatch], size: int) -> Iterator[pa.RecordBatch]:
    """Cut and join batches so that all but the last have `size` rows; only joined rows are copied."""
    parts: list[pa.RecordBatch] = []
    missing = size
    for batch in batches:
        start = 0
        while start < batch.num_rows:
            part = batch.slice(start, missing)
            parts.append(part)
            start += part.num_rows
            missing -= part.num_rows
            if not missing:
                yield _joined(parts)
                parts, missing = [], size
    if parts:
        yield _joined(parts)


def check_arrow(function: Function, key_by: str | list[str] | None, mode: str) -> None:
    """Raise `ConfigError` if a function of record batches is used with keys."""
    if not isinstance(function, AsyncBatchFunction) or not function.arrow:
        return
    if key_by is not None or mode == "key_ordered":
        raise ConfigError("function", function, "a record batch has many keys: set arrow = False, or pass no key_by")


def _joined(parts: list[pa.RecordBatch]) -> pa.RecordBatch:
    return parts[0] if len(parts) == 1 else pa.concat_batches(parts)
