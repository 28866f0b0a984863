"""Tools to test a storage: wrappers that count, slow down and fail, and a contract that every storage must fulfil.

`snapshots.testing.contract` holds the contract. Import it explicitly, because it needs pytest.
"""

from __future__ import annotations

from snapshots.testing.wrappers import CountingFolder, Crash, Fault, FaultyFolder, FolderWrapper, restless_threads

__all__ = ["CountingFolder", "Crash", "Fault", "FaultyFolder", "FolderWrapper", "restless_threads"]
