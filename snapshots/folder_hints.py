"""Looks around a folder without a snapshot, because the caller may have named the wrong folder."""

from __future__ import annotations

import logging
import warnings

from keygroups.errors import ConfigError
from snapshots.errors import EmptyBesideOthers, SnapshotNotFound
from snapshots.filesystem import Folder
from snapshots.lineage import LINEAGE
from snapshots.restore.snapshot import Snapshot, newest_snapshot
from snapshots.versions import version_of

NEIGHBOURS_MAX = 16
"""The most names that are checked."""

_log = logging.getLogger(__name__)


def not_found(folder: Folder) -> SnapshotNotFound:
    """Return the error for a folder without a snapshot: it says what the folder is, and names those with snapshots."""
    parent = folder.parent
    if parent is not None and _is_operator(parent):
        return _error(folder, (parent.uri,), f", which is a part of the folder of an operator: name {parent.uri}")
    below = _operators_in(folder)
    if below:
        advice = f", which is the folder above the operators' folders: name one of {', '.join(below)}"
        return _error(folder, below, f"{advice}, or list them with `keygroups ls {folder.uri}`")
    what = "which has files of something else" if _has_others(folder) else "which is empty or absent"
    around = neighbours(folder)
    if not around:
        return _error(folder, (), f", {what}: check the URI, which names one operator's folder")
    return _error(folder, around, f", {what}: check the URI; there are snapshots in {', '.join(around)}")


def _has_others(folder: Folder) -> bool:
    return any(name != LINEAGE for name in _names(folder, ""))


def _error(folder: Folder, nearby: tuple[str, ...], advice: str) -> SnapshotNotFound:
    return SnapshotNotFound(folder.uri, nearby=nearby, advice=advice)


def newest_or_empty(folder: Folder) -> Snapshot | None:
    """Return the newest snapshot for an operator that goes on from it, or None if it begins empty.

    Raises
    ------
    ConfigError
        It begins empty, and the parent folder is the folder of an operator, or operators have theirs in this one.
    """
    newest = newest_snapshot(folder)
    if newest is None:
        explain_empty(folder)
    return newest


def explain_empty(folder: Folder, name: str | None = None) -> None:
    """Log if an operator begins empty beside others: most such operators are new, so there is no warning.

    Parameters
    ----------
    folder : Folder
        The folder of that operator.
    name : str, optional
        The name under which it could begin in this folder, if this is the folder above the operators' folders.

    Raises
    ------
    ConfigError
        The parent folder is the folder of an operator, or operators have their folders in this one.
    """
    _refuse_inside_another(folder)
    below = _operators_in(folder)
    if below:
        free = f"{folder.uri}/{name}"
        place = f"{folder.uri}/NAME" if name is None or free in below else free
        reason = f"is the folder above the operators' folders ({', '.join(below)}): name one in it, such as {place}"
        raise ConfigError("uri", folder.uri, reason)
    others = neighbours(folder)
    if others:
        _log.warning("%s", EmptyBesideOthers(folder.uri, others))


def warn_of_others(folder: Folder) -> None:
    """Warn the caller's caller, which asked for a snapshot and gets None, of the snapshots nearby.

    Raises
    ------
    ConfigError
        The parent folder is the folder of an operator.
    """
    _refuse_inside_another(folder)
    others = _operators_in(folder) or neighbours(folder)
    if others:
        warnings.warn(EmptyBesideOthers(folder.uri, others), stacklevel=3)


def _refuse_inside_another(folder: Folder) -> None:
    parent = folder.parent
    if parent is not None and _is_operator(parent):
        above, _, operator_id = parent.uri.rpartition("/")
        raise ConfigError(
            "uri",
            parent.uri,
            f"is the folder of operator {operator_id!r} itself, where no other has its own: "
            f"open SnapshotStore({above!r}, {operator_id!r}), or SnapshotStore.at({parent.uri!r})",
        )


def neighbours(folder: Folder) -> tuple[str, ...]:
    """Return the URIs of neighbouring folders that have snapshots."""
    around = () if folder.parent is None else _operators_in(folder.parent)
    return tuple(uri for uri in around if uri != folder.uri)


def folder_above(folder: Folder) -> str | None:
    """Return the URI of a folder in this one that is the folder above the operators' folders; None if none is found."""
    names = [name for name in _names(folder, "") if not name.startswith(".")]
    return next((below.uri for below in map(folder.child, names[:NEIGHBOURS_MAX]) if _operators_in(below)), None)


def _operators_in(folder: Folder) -> tuple[str, ...]:
    names = [name for name in _names(folder, "") if not name.startswith(".")]
    return tuple(folder.child(name).uri for name in names[:NEIGHBOURS_MAX] if _is_operator(folder, f"{name}/"))


def _is_operator(folder: Folder, below: str = "") -> bool:
    return any(version_of(f"manifests/{name}") for name in _names(folder, f"{below}manifests"))


def _names(folder: Folder, below: str) -> list[str]:
    try:
        return folder.names(below)
    except OSError as error:  # this process may have no rights outside of its folder
        _log.debug("%s cannot be listed: %s", folder.path(below), error)
        return []
