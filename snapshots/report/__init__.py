"""Renders a snapshot as one self-contained web page."""

from __future__ import annotations

from snapshots.report.page import render

__all__ = ["render"]
