"""`Retention` for pipelines: the stub of this package can name its own modules only."""

from __future__ import annotations

from async_op.epochs.retention import Retention

__all__ = ["Retention"]
