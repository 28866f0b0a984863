"""The async operator on Spark: a stateless transform of DataFrames, and a streaming pipeline with keyed state."""

from .autoscale import AutoscalePolicy, EpochMeasurement, ScalingDecision
from .connect.query import ConnectQuery
from .description import Explanation, Finding
from .errors import (
    CalledInSink,
    EpochFailed,
    ModuleNotOnWorkers,
    OutputMismatch,
    UnfinishedRun,
    UnpicklableFunction,
    UnrelatedHistories,
    UnrelatedPipelines,
    UnsuitableWorkerPython,
    WorkerLate,
    WorkerSilent,
)
from .pipeline import AsyncPipeline
from .progress import EpochMetrics, EpochProgress
from .query import PipelineQuery
from .restarts import run_with_restarts
from .retention import Retention
from .rows.dead_letter_column import split_dead_letters

__all__ = [
    "AsyncPipeline",
    "AutoscalePolicy",
    "CalledInSink",
    "ConnectQuery",
    "EpochFailed",
    "EpochMeasurement",
    "EpochMetrics",
    "EpochProgress",
    "Explanation",
    "Finding",
    "ModuleNotOnWorkers",
    "OutputMismatch",
    "PipelineQuery",
    "Retention",
    "ScalingDecision",
    "UnfinishedRun",
    "UnpicklableFunction",
    "UnrelatedHistories",
    "UnrelatedPipelines",
    "UnsuitableWorkerPython",
    "WorkerLate",
    "WorkerSilent",
    "run_with_restarts",
    "split_dead_letters",
]
