"""Snapshots and Spark: a data source, stored outputs as a DataFrame, the rewrite as a job."""

from __future__ import annotations

import keygroups.spark  # noqa: F401 - first, because it says what to install if Spark is missing
from snapshots.spark.outputs import outputs_frame
from snapshots.spark.source import register

__all__ = ["outputs_frame", "register"]
