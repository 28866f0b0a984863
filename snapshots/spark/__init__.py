"""Snapshots and Spark: stored outputs as a DataFrame, the rewrite as a job."""

from __future__ import annotations

from snapshots.spark.outputs import outputs_frame

__all__ = ["outputs_frame"]
