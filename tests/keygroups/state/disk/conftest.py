"""The directory that state on the local disk is kept in."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "state"
