"""The async operator on Spark: a stateless transform of DataFrames, and a streaming pipeline with keyed state."""

from .autoscale import AutoscalePolicy, EpochMeasurement, ScalingDecision
from .errors import OutputMismatch, UnfinishedRun, UnpicklableFunction, UnrelatedHistories, UnrelatedPipelines
from .explanation import Explanation, Finding
from .pipeline import AsyncPipeline
from .progress import EpochMetrics, EpochProgress
from .query import PipelineQuery
from .retention import Retention
from .rows.dead_letter_column import split_dead_letters

__all__ = [
    "AsyncPipeline",
    "AutoscalePolicy",
    "EpochMeasurement",
    "EpochMetrics",
    "EpochProgress",
    "Explanation",
    "Finding",
    "OutputMismatch",
    "PipelineQuery",
    "Retention",
    "ScalingDecision",
    "UnfinishedRun",
    "UnpicklableFunction",
    "UnrelatedHistories",
    "UnrelatedPipelines",
    "split_dead_letters",
]
