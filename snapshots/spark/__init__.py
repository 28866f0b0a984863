"""Snapshots and Spark: a data source, stored outputs as a DataFrame, the rewrite as a job."""

from __future__ import annotations

from lazy_loader import attach_stub

import keygroups.spark  # noqa: F401 - its error says what to install if Spark is missing

# `__init__.pyi` maps each name to its module. A module is loaded, with its dependencies, on the first use of a name.
__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
