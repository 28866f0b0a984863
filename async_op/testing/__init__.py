"""A kit to test functions without waiting: virtual time, a harness for one operator, and recorded services."""

from __future__ import annotations

from lazy_loader import attach_stub

# `__init__.pyi` maps each name to its module. A module is loaded, with its dependencies, on the first use of a name.
__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
