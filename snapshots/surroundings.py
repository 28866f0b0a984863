"""Looks around a folder without a snapshot, because the caller may have named the wrong folder."""

from __future__ import annotations

import logging

from keygroups.errors import ConfigError
from snapshots.errors import SnapshotNotFound
from snapshots.filesystem import Folder
from snapshots.versions import version_of

NEIGHBOURS_MAX = 16
"""The most names that are checked."""

_log = logging.getLogger(__name__)


def not_found(folder: Folder) -> SnapshotNotFound:
    """Return the error for a folder without a snapshot; it names nearby folders with snapshots."""
    parent = folder.parent
    if parent is not None and _is_operator(parent):
        return SnapshotNotFound(folder.uri, nearby=(parent.uri,))
    below = _operators_in(folder)
    return SnapshotNotFound(folder.uri, nearby=below or neighbours(folder))


def explain_empty(folder: Folder) -> None:
    """Refuse an operator's folder inside another operator's, and log if an operator begins empty beside others.

    Raises
    ------
    ConfigError
        The parent folder is the folder of an operator.
    """
    parent = folder.parent
    if parent is not None and _is_operator(parent):
        above, _, operator_id = parent.uri.rpartition("/")
        raise ConfigError(
            "uri",
            parent.uri,
            f"is the folder of operator {operator_id!r} itself, where no other has its own: "
            f"open SnapshotStore({above!r}, {operator_id!r}), or SnapshotStore.at({parent.uri!r})",
        )
    others = neighbours(folder)
    if others:
        _log.warning(
            "%s has no snapshot, so its operator begins empty; there are snapshots in %s: "
            "if it is not new, check uri and operator_id",
            folder.uri,
            ", ".join(others),
        )


def neighbours(folder: Folder) -> tuple[str, ...]:
    """Return the URIs of neighbouring folders that have snapshots."""
    around = () if folder.parent is None else _operators_in(folder.parent)
    return tuple(uri for uri in around if uri != folder.uri)


def _operators_in(folder: Folder) -> tuple[str, ...]:
    names = [name for name in _names(folder, "") if not name.startswith(".")]
    return tuple(f"{folder.uri}/{name}" for name in names[:NEIGHBOURS_MAX] if _is_operator(folder, f"{name}/"))


def _is_operator(folder: Folder, below: str = "") -> bool:
    return any(version_of(f"manifests/{name}") for name in _names(folder, f"{below}manifests"))


def _names(folder: Folder, below: str) -> list[str]:
    try:
        return folder.names(below)
    except OSError as error:  # this process may have no rights outside of its folder
        _log.debug("%s cannot be listed: %s", folder.path(below), error)
        return []
