"""How many epochs in a row a sink may leave out."""

from __future__ import annotations

import logging

from async_op.connectors.errors import EpochsBehind

_REPEATS_MAX = 16
"""How many epochs in a row may be older than the newest one. A job repeats the few that it has not marked."""
_log = logging.getLogger(__name__)


class Repeats:
    """Counts the epochs that a sink leaves out because its target has newer ones.

    Parameters
    ----------
    name : str
        The name under which the target remembers the job's epochs.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._count = 0

    def forget(self) -> None:
        """Count from the beginning: an epoch was written, or was the newest one."""
        self._count = 0

    def note(self, epoch: int, newest: int) -> None:
        """Count an epoch that is left out, and warn of it.

        Raises
        ------
        EpochsBehind
            There were too many in a row for a job that repeats what it has not marked.
        """
        self._count += 1
        _log.warning("epoch %d of %s was left out: epoch %d is there already", epoch, self._name, newest)
        if self._count > _REPEATS_MAX:
            raise EpochsBehind(self._name, epoch, newest)
