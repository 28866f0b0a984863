"""Errors of state on the local disk; each says what to do next."""

from __future__ import annotations

from keygroups.errors import KeyGroupsError


class StoreNotInstalled(KeyGroupsError, ImportError):
    """The disk backend needs a store that is not installed."""

    package: str
    """The missing package."""

    _template = "state on disk needs {package}; install it with: pip install 'keygroups[disk]'"


class StateDirectoryNotLocked(KeyGroupsError, OSError):
    """No directory for the state could be locked, so other processes would take it for a left-over."""

    parent: str
    """The directory in which it was tried."""

    _template = (
        "no file in {parent} can be locked, as on some network file systems; choose a directory on a local disk with "
        "DiskStateBackend(directory=…)"
    )


class StateDirectoryRefused(KeyGroupsError, OSError):
    """No directory for the state could be made: it may not be written to, or something else is in its place."""

    parent: str
    """The directory in which it was tried."""
    reason: str
    """The system's own message."""

    _template = (
        "no state can be kept in {parent} ({reason}); let this process write there, or choose another directory on a "
        "local disk with DiskStateBackend(directory=…)"
    )


class StateStoreFailed(KeyGroupsError, OSError):
    """The local store could not read or write. Committed state is safe, because it is in the snapshots."""

    directory: str
    """The directory of the state."""
    reason: str
    """The store's own message."""

    _template = "the state in {directory} cannot be used ({reason}); restore the operator from its newest snapshot"


class StateDiskFull(KeyGroupsError, OSError):
    """The local disk has no room for the state. Committed state is safe, because it is in the snapshots."""

    directory: str
    """The directory of the state."""

    _template = (
        "no space is left for the state in {directory}; free some, or choose a larger disk with "
        "DiskStateBackend(directory=…), and restore the operator from its newest snapshot"
    )
