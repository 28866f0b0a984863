"""The async operator on Spark: a stateless transform of DataFrames, and a streaming pipeline with keyed state."""

from __future__ import annotations

import keygroups.spark  # noqa: F401 - first, because its error says what to install if Spark is missing
from async_op.spark.autoscale import AutoscalePolicy, EpochMeasurement, ScalingDecision
from async_op.spark.errors import OutputMismatch, UnpicklableFunction, UnrelatedHistories
from async_op.spark.pipeline import AsyncPipeline
from async_op.spark.progress import EpochMetrics, EpochProgress
from async_op.spark.query import PipelineQuery
from async_op.spark.retention import Retention
from async_op.spark.rows.dead_letter_column import split_dead_letters

__all__ = [
    "AsyncPipeline",
    "AutoscalePolicy",
    "EpochMeasurement",
    "EpochMetrics",
    "EpochProgress",
    "OutputMismatch",
    "PipelineQuery",
    "Retention",
    "ScalingDecision",
    "UnpicklableFunction",
    "UnrelatedHistories",
    "split_dead_letters",
]
