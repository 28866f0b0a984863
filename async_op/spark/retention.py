"""`Retention` under the name that pipelines give it."""

from __future__ import annotations

from async_op.retention import Retention

__all__ = ["Retention"]
