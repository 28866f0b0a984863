"""Snapshots and Spark: a data source, stored outputs as a DataFrame, the rewrite as a job."""

from .outputs import outputs_frame
from .source import register

__all__ = [
    "outputs_frame",
    "register",
]
