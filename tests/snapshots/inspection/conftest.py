"""Versions to look at, in many small files."""

from __future__ import annotations

import pytest

from snapshots import Snapshot
from snapshots.format import columns, files, parquet
from tests.quick import first_is_quick
from tests.snapshot_kit import new_store
from tests.snapshots.inspection.kit import Operator


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many files, row groups and pieces, however little there is."""
    monkeypatch.setattr(files, "FILE_BYTES", 1000)
    monkeypatch.setattr(files, "ROW_GROUP_ROWS_MIN", 8)
    monkeypatch.setattr(columns, "PIECE_ROWS_MAX", 3)
    monkeypatch.setattr(parquet, "BATCH_BYTES", 100)


@pytest.fixture(params=first_is_quick(range(4)))
def versions(request: pytest.FixtureRequest) -> list[Snapshot]:
    """Three versions of four kinds of state; the later two have deltas."""
    operator = Operator(new_store(), request.param)
    made = []
    for count in (150, 12, 3):
        operator.change(count)
        made.append(operator.cut())
    return made
