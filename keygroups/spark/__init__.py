"""Key groups and subtasks as Spark columns."""

from __future__ import annotations

from importlib.util import find_spec

from lazy_loader import attach_stub

from keygroups.errors import SparkNotInstalled

if find_spec("pyspark") is None:
    raise SparkNotInstalled("pyspark")

# `__init__.pyi` maps each name to its module. A module is loaded, with its dependencies, on the first use of a name.
__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
