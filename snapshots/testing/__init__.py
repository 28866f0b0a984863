"""What shows that a storage can be trusted: wrappers that count, slow down and fail, and a contract to test it with.

`snapshots.testing.contract` holds the contract; it needs pytest, so it is imported by itself.
"""

from __future__ import annotations

from snapshots.testing.faults import Crash, Fault, FaultyFolder
from snapshots.testing.threads import restless_threads
from snapshots.testing.wrappers import CountingFolder, FolderWrapper, SlowFolder

__all__ = ["CountingFolder", "Crash", "Fault", "FaultyFolder", "FolderWrapper", "SlowFolder", "restless_threads"]
