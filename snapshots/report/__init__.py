"""A snapshot as one web page that needs nothing but itself."""

from __future__ import annotations

from snapshots.report.page import render

__all__ = ["render"]
