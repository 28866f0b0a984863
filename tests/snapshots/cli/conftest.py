"""An operator to run commands on."""

from __future__ import annotations

from pathlib import Path

import pytest

from snapshots.format.subtask import InFlightElement
from snapshots.store import SnapshotStore
from tests.snapshots.cli_kit import subtask_snapshot


@pytest.fixture
def uri(tmp_path: Path) -> str:
    """The folder of an operator with one snapshot: 128 + 64 rows, two pending and one completed call."""
    first = (
        InFlightElement(channel=0, sequence=0, value="a", key="a", key_group=3, element_id="a-0"),
        InFlightElement(channel=0, sequence=1, is_watermark=True, timestamp=1000),
        InFlightElement(
            channel=0, sequence=2, value="b", key="b", key_group=60, element_id="b-0", completed=True, outputs=("B",)
        ),
    )
    second = (InFlightElement(channel=1, sequence=0, value="c", key="c", key_group=127, element_id="c-0"),)
    store = SnapshotStore(tmp_path, "enrich")
    store.write([subtask_snapshot(0, first, 500), subtask_snapshot(1, second, None)], source_position={"batch_id": 7})
    return f"{tmp_path}/enrich"
