"""A store whose files can be made older."""

from __future__ import annotations

from pathlib import Path

import pytest

from snapshots import SnapshotStore


@pytest.fixture
def store(tmp_path: Path) -> SnapshotStore:
    return SnapshotStore(tmp_path, "enrich")
