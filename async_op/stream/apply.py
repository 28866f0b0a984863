"""Applies a function to the input of an entry point: in this process, or in Spark's workers for a DataFrame."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from async_op.arrow_stream import has_arrow_stream
from async_op.clock import Clock
from async_op.dead_letters import OnError
from async_op.durations import check_timeout
from async_op.key_columns import key_getter
from async_op.operator.vetting import unreadable_among
from async_op.options import Mode, OperatorOptions, StateBackend
from async_op.plain import AnyFunction, as_function
from async_op.resilience import Resilience
from async_op.retry import RetryPolicy
from async_op.stream.local_stream import LocalStream
from async_op.stream.timestamps import TimestampsBy, timestamps_of
from async_op.threads.wait_strategies import WaitStrategiesOption
from keygroups.arguments import Duration
from keygroups.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


def apply(
    stream: Any,
    function: AnyFunction,
    *,
    mode: Mode,
    output_schema: StructType | str | None,
    timeout: Duration | None,
    capacity: int,
    retry: RetryPolicy | None,
    key_by: Any,
    on_error: OnError,
    dead_letters: Any,
    resilience: Resilience | None,
    state_backend: StateBackend,
    wait_strategies: WaitStrategiesOption | None,
    timestamps: TimestampsBy | None,
    watermark_delay: Duration | None,
    clock: Clock | None,
) -> Any:
    """Return the outputs for a stream; the parameters are those of `AsyncDataStream.ordered_wait`."""
    if type(stream).__module__.startswith("pyspark."):
        if state_backend != "memory":
            raise ConfigError("state_backend", state_backend, "keyed state needs snapshots: use AsyncPipeline")
        if clock is not None:
            raise ConfigError("clock", clock, "each worker uses its own clock: leave it out")
        for name, given in (("timestamps", timestamps), ("watermark_delay", watermark_delay)):
            if given is not None:
                raise ConfigError(name, given, "event time on Spark needs a pipeline: use AsyncPipeline's `event_time`")
        from async_op.spark.transform import transform

        return transform(
            stream,
            function,
            mode=mode,
            output_schema=output_schema,
            timeout=timeout,
            capacity=capacity,
            retry=retry,
            key_by=key_by,
            on_error=on_error,
            dead_letters=dead_letters,
            resilience=resilience,
            wait_strategies=wait_strategies,
        )
    if output_schema is not None:
        raise ConfigError("output_schema", output_schema, "only a Spark DataFrame needs it: leave it out")
    if wait_strategies is not None:
        reason = "only threads of Spark's tasks wait as it says, an event loop never: leave it out"
        raise ConfigError("wait_strategies", wait_strategies, reason)
    options = OperatorOptions(
        function=as_function(function),
        mode=mode,
        capacity=capacity,
        timeout=check_timeout("timeout", timeout),
        retry=retry,
        key_by=key_getter(key_by),
        on_error=on_error,
        dead_letters=dead_letters,
        resilience=resilience,
        state_backend=state_backend,
    )
    times = timestamps_of(timestamps, watermark_delay)
    vet = unreadable_among if times is not None or has_arrow_stream(stream) else None
    return LocalStream(options, clock, times, vet).outputs(stream)
