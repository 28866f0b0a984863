"""The stateless transform: a lazy DataFrame whose partitions each run an operator."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from async_op.dead_letters import OnError
from async_op.durations import check_timeout
from async_op.options import Mode, OperatorOptions
from async_op.plain_functions import AnyFunction, as_function
from async_op.resilience import Resilience
from async_op.retry import RetryPolicy
from async_op.spark.rows.arrow_function import check_arrow
from async_op.spark.rows.arrow_outputs import OutputWriter
from async_op.spark.rows.dead_letter_column import DeadLetters, schema_with_letters
from async_op.spark.rows.keys import key_columns, key_getter, names_of
from async_op.spark.rows.schemas import arrow_schema, parse_schema
from async_op.spark.task.partition_elements import elements_of
from async_op.spark.task.partition_task import PartitionTask
from async_op.spark.task.pickling import check_pickles
from async_op.spark.worker_python import check_workers
from async_op.threads.wait_strategies import WaitStrategiesOption, as_wait_strategies
from keygroups.arguments import Duration
from keygroups.errors import ConfigError
from keygroups.spark.partitions import map_in_arrow


def transform(
    frame: DataFrame,
    function: AnyFunction,
    *,
    mode: Mode,
    output_schema: StructType | str | None = None,
    timeout: Duration | None = None,
    capacity: int = 100,
    key_by: str | list[str] | None = None,
    retry: RetryPolicy | None = None,
    on_error: OnError = "fail",
    dead_letters: DeadLetters | None = None,
    resilience: Resilience | None = None,
    wait_strategies: WaitStrategiesOption | None = None,
) -> DataFrame:
    """Apply a function to each row of a DataFrame, batch or streaming; nothing is kept after the end of a partition.

    Raises
    ------
    ConfigError
        The function declares state or timers, which need `AsyncPipeline`, or an argument can never work.
    UnpicklableFunction
        The function holds what cannot be sent to the executors.
    UnsuitableWorkerPython, ModuleNotOnWorkers
        On a local master: Spark's workers cannot run the function.
    """
    function = as_function(function)
    if function.states or function.operator_states or function.has_timers:
        reason = "state and timers need snapshots: use async_op.spark.AsyncPipeline"
        raise ConfigError("function", function, reason)
    keys = () if key_by is None else key_columns(frame.schema, names_of(key_by))
    check_arrow(function, key_by, mode)
    schema = schema_with_letters(parse_schema(output_schema), on_error, dead_letters)
    writer = OutputWriter(arrow_schema(frame.sparkSession, schema))
    elements = elements_of(function, capacity, writer)
    options = OperatorOptions(
        function=function,
        mode=mode,
        capacity=capacity,
        timeout=check_timeout("timeout", timeout),
        retry=retry,
        key_by=key_getter(keys),
        on_error=on_error,
        dead_letters=elements.dead_letters() if on_error == "dead_letter" else None,
        resilience=resilience,
    )
    if resilience is not None and resilience.budgets:
        reason = "each partition would spend all of it: use async_op.spark.AsyncPipeline, whose subtasks share it"
        raise ConfigError("budget", resilience.budget, reason)
    task = PartitionTask(elements, options, as_wait_strategies(wait_strategies))
    task.make_operator(lambda _: None)  # refuses here, on the driver, what can never work
    check_pickles(options, task.wait_strategies)
    check_workers(frame.sparkSession, task)
    return map_in_arrow(frame, task, schema)
