"""Asynchronous operators: many calls to a slow service under way at once, with order, timeouts and keyed state."""

from __future__ import annotations

import logging

from lazy_loader import attach_stub

# `__init__.pyi` says where each name is; it is loaded, with all that it needs, when it is used for the first time.
__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)

logging.getLogger(__name__).addHandler(logging.NullHandler())  # who wants to read it says so
