"""Where snapshots are kept, what is asked of it, and the command line in this process."""

from __future__ import annotations

from pathlib import Path

import pytest

from snapshots import SnapshotStore
from snapshots.filesystem import MemoryFolder
from tests.quick import in_turn
from tests.snapshot_kit import new_store
from tests.snapshots.cli_kit import Cli, runner


@pytest.fixture(params=in_turn(["memory", "local"]))
def store(request: pytest.FixtureRequest, tmp_path: Path) -> SnapshotStore:
    """Run the test with an empty store in memory, and with one on the local disk."""
    return new_store(str(tmp_path) if request.param == "local" else None)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the bytes of each request for data files; the list grows with them."""
    made: list[int] = []
    original = MemoryFolder.read

    def counting(self: MemoryFolder, name: str, start: int | None = None, end: int | None = None) -> bytes:
        data = original(self, name, start, end)
        if name.startswith("data/"):
            made.append(len(data))
        return data

    monkeypatch.setattr(MemoryFolder, "read", counting)
    monkeypatch.setattr(MemoryFolder, "open", None)
    return made


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Cli:
    return runner(capsys)
