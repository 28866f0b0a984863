"""Where snapshots of the unit tests are kept, and what is asked of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from snapshots import SnapshotStore
from tests.snapshot_kit import new_store


@pytest.fixture(params=["memory", "local"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> SnapshotStore:
    """Run the test with an empty store in memory, and with one on the local disk."""
    return new_store(str(tmp_path) if request.param == "local" else None)
