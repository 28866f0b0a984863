"""Forks the Python workers of the shared Spark session with what each of them imports.

A worker of Spark's own daemon imports for half a second of processor time. After each task it then collects garbage,
and looks at all the objects of these modules for 30 ms more.
"""

from __future__ import annotations

import gc

import pandas  # noqa: F401 - pyarrow imports it, too, for its first array
from pyspark import daemon

import keygroups.spark.columns  # noqa: F401

if __name__ == "__main__":
    gc.freeze()
    daemon.manager()
