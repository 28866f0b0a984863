"""Arrow's functions, loaded when the first of them is called: their import takes as long as that of all snapshots."""

from __future__ import annotations

import importlib
from typing import Any


def __getattr__(name: str) -> Any:
    return getattr(importlib.import_module("pyarrow.compute"), name)
