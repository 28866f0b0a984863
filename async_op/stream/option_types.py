"""The types of what `AsyncDataStream` takes: its options, and the kinds of plain functions."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from os import PathLike
from typing import TYPE_CHECKING, Any, Concatenate, Literal, TypeAlias, TypeVar

from async_op.clock import Clock
from async_op.connectors.sink import Sink
from async_op.dead_letters import DeadLetter, OnError
from async_op.key_columns import KeyBy
from async_op.options import CallOptions, StateBackend
from async_op.stream.timestamps import TimestampsBy
from keygroups.arguments import Duration

if TYPE_CHECKING:
    from typing import Required

    from pyspark.sql.types import StructType

_In = TypeVar("_In")
_Out = TypeVar("_Out")

CoroutineFunction: TypeAlias = Callable[Concatenate[_In, ...], Coroutine[Any, Any, _Out]]
"""A coroutine function, whose result is the one output."""

YieldedOutputs: TypeAlias = (
    Callable[Concatenate[_In, ...], AsyncIterator[_Out]] | Callable[Concatenate[_In, ...], Iterator[_Out]]
)
"""A generator function, asynchronous or not."""

ReturnedOutput: TypeAlias = Callable[Concatenate[_In, ...], _Out]
"""Any other function, which runs on threads."""


class LocalOptions(CallOptions, total=False):
    """The options for a stream in this process; `AsyncDataStream.ordered_wait` describes them."""

    key_by: KeyBy | None
    on_error: OnError
    dead_letters: Callable[[DeadLetter], object] | Sink[Any] | None
    state_backend: StateBackend
    timestamps: TimestampsBy | None
    watermark_delay: Duration | None
    clock: Clock | None
    snapshots: str | PathLike[str] | None
    job_id: str | None


class DataFrameOptions(CallOptions, total=False):
    """The options for a Spark DataFrame; `AsyncDataStream.ordered_wait` describes them."""

    output_schema: Required[StructType | str]
    key_by: str | list[str] | None
    on_error: OnError
    dead_letters: Literal["column"] | None
