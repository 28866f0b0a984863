"""Errors of state on the local disk, named after the situation."""

from __future__ import annotations

from keygroups.errors import KeyGroupsError


class StoreNotInstalled(KeyGroupsError, ImportError):
    """State is to be kept on disk, but the store is not installed.

    Attributes
    ----------
    package : str
        What is missing.
    """

    def __init__(self, package: str) -> None:
        self.package = package
        super().__init__(f"state on disk needs {package}; install it with: pip install 'keygroups[disk]'")


class StateStoreFailed(KeyGroupsError, OSError):
    """The local store could not read or write. What is committed is in the snapshots, so nothing of that is lost.

    Attributes
    ----------
    directory : str
        Where it works.
    reason : str
        What it said.
    """

    def __init__(self, directory: str, reason: str) -> None:
        self.directory = directory
        self.reason = reason
        super().__init__(
            f"the state in {directory} cannot be used ({reason}); restore the operator from its newest snapshot"
        )


class StateDiskFull(KeyGroupsError, OSError):
    """There is no room for the state on the local disk. What is committed is in the snapshots.

    Attributes
    ----------
    directory : str
        Where it works.
    """

    def __init__(self, directory: str) -> None:
        self.directory = directory
        super().__init__(
            f"no space is left for the state in {directory}; free some, or choose a larger disk with "
            "DiskStateBackend(directory=…), and restore the operator from its newest snapshot"
        )
