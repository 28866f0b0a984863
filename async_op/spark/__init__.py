"""The async operator on Spark: a stateless transform of DataFrames, and a streaming pipeline with keyed state."""

from __future__ import annotations

from async_op.spark.autoscale import AutoscalePolicy, EpochMeasurement, ScalingDecision
from async_op.spark.dead_letters import split_dead_letters
from async_op.spark.epoch import EpochProgress
from async_op.spark.errors import OutputMismatch
from async_op.spark.pipeline import AsyncPipeline, PipelineQuery

__all__ = [
    "AsyncPipeline",
    "AutoscalePolicy",
    "EpochMeasurement",
    "EpochProgress",
    "OutputMismatch",
    "PipelineQuery",
    "ScalingDecision",
    "split_dead_letters",
]
