"""Snapshots of keyed state and in-flight elements: the Parquet format, its commit protocol, restore and rescale."""

from __future__ import annotations

import logging

from lazy_loader import attach_stub

# `__init__.pyi` maps each name to its module. A module is loaded, with its dependencies, on the first use of a name.
__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)

logging.getLogger(__name__).addHandler(logging.NullHandler())  # silent until the application configures logging
