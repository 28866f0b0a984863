"""Arrow's compute functions, loaded on first use: importing them takes as long as importing the whole package."""

from __future__ import annotations

import importlib
from typing import Any


def __getattr__(name: str) -> Any:
    return getattr(importlib.import_module("pyarrow.compute"), name)
