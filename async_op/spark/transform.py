"""The stateless transform: a lazy DataFrame whose partitions each run an operator."""

from __future__ import annotations

from dataclasses import replace
from typing import Unpack

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from async_op.dead_letters import OnError
from async_op.options import CallOptions, Mode, OperatorOptions
from async_op.plain_functions import AnyFunction, as_function
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
from keygroups.errors import ConfigError
from keygroups.spark.partitions import map_in_arrow


def transform(
    frame: DataFrame,
    function: AnyFunction,
    *,
    mode: Mode,
    output_schema: StructType | str | None = None,
    key_by: str | list[str] | None = None,
    on_error: OnError = "fail",
    dead_letters: DeadLetters | None = None,
    wait_strategies: WaitStrategiesOption | None = None,
    **options: Unpack[CallOptions],
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
    made = OperatorOptions.of(function, mode=mode, key_by=key_getter(keys), **options)
    elements = elements_of(function, made.capacity, writer)
    letters = elements.dead_letters() if on_error == "dead_letter" else None
    made = replace(made, on_error=on_error, dead_letters=letters)
    if made.resilience is not None and made.resilience.budgets:
        reason = "each partition would spend all of it: use async_op.spark.AsyncPipeline, whose subtasks share it"
        raise ConfigError("budget", made.resilience.budget, reason)
    task = PartitionTask(elements, made, as_wait_strategies(wait_strategies))
    task.make_operator(lambda _: None)  # refuses here, on the driver, what can never work
    check_pickles(made, task.wait_strategies)
    check_workers(frame.sparkSession, task)
    return map_in_arrow(frame, task, schema)
