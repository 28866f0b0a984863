"""What a task tells the driver about its subtask of an epoch."""

from __future__ import annotations

import pickle
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain
from typing import TypeAlias

import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql.types import BinaryType, IntegerType, StructField, StructType

from async_op.epochs.position import SubtaskTimes
from async_op.hosting.messages import Address, Part
from async_op.spark.progress import EpochMetrics
from async_op.spark.task.operator_factory import WrittenPart
from keygroups.errors import KeyGroupsError
from snapshots import SubtaskHandle

REPORT_SCHEMA = StructType([StructField("subtask", IntegerType()), StructField("report", BinaryType())])

_ARROW_SCHEMA = pa.schema([("subtask", pa.int32()), ("report", pa.binary())])

NO_REPORT = pa.RecordBatch.from_pylist([], _ARROW_SCHEMA)
"""A batch without rows, which a task yields as a sign of life."""


@dataclass(frozen=True, slots=True)
class SubtaskReport:
    """What a subtask did in an epoch.

    Attributes
    ----------
    part : Part
        The part that its host wrote.
    address : Address or None
        Where the host listens; None if the operator ran in the task, or the host ends with this epoch.
    metrics : EpochMetrics
        The subtask's share of the epoch's counters.
    times : SubtaskTimes
        What the next epoch needs to know about timestamps and timers.
    fallback : str or None
        Why the operator ran in the task; None if it lives in a process of its own.
    """

    part: Part
    address: Address | None
    metrics: EpochMetrics
    times: SubtaskTimes
    fallback: str | None = None

    @property
    def subtask_index(self) -> int:
        """The subtask."""
        return self.part.subtask_index

    @property
    def handle(self) -> SubtaskHandle:
        """The handle by which the driver commits the part."""
        return self._written.handle

    @property
    def outputs(self) -> dict[str, pa.Table]:
        """The rows of the output file that the part has, by its path; empty if they are too many to report."""
        rows, files = self._written.rows, self.handle.files
        return {} if rows is None else {file.path: rows for file in files if file.kind == "output"}

    @property
    def _written(self) -> WrittenPart:
        written: WrittenPart = self.part.handle
        return written


@dataclass(frozen=True, slots=True)
class SubtaskFailure:
    """The error that a subtask failed with.

    Attributes
    ----------
    subtask_index : int
        The subtask.
    address : Address or None
        The host that the task reached last, which the driver must stop; None if it reached none.
    error : KeyGroupsError
        The error.
    """

    subtask_index: int
    address: Address | None
    error: KeyGroupsError


Report: TypeAlias = SubtaskReport | SubtaskFailure
"""What a subtask did, or the error that it failed with."""


def batch_of(report: Report) -> pa.RecordBatch:
    """Return a report as the one row that its task yields."""
    columns = [pa.array([report.subtask_index], pa.int32()), pa.array([pickle.dumps(report)], pa.binary())]
    return pa.RecordBatch.from_arrays(columns, schema=_ARROW_SCHEMA)


def reports_in(rows: Iterable[Row]) -> list[Report]:
    """Return the reports of an epoch's tasks."""
    return [pickle.loads(row["report"]) for row in rows]  # noqa: S301 - from our own tasks


def checked(reports: Iterable[Report]) -> list[SubtaskReport]:
    """Return the reports of an epoch in which every subtask did its part.

    Raises
    ------
    KeyGroupsError
        The error of the first task that failed.
    """
    found: list[SubtaskReport] = []
    for report in reports:
        if isinstance(report, SubtaskFailure):
            raise report.error
        found.append(report)
    return found


def outputs_in(reports: Iterable[SubtaskReport]) -> dict[str, pa.Table]:
    """Return the rows of output files by their paths, as far as tasks have reported them."""
    return dict(chain.from_iterable(report.outputs.items() for report in reports))
