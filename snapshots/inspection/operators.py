"""The operators under a folder, each with its newest version."""

from __future__ import annotations

from dataclasses import dataclass

from keygroups.errors import KeyGroupsError
from keygroups.representation import fields_repr
from snapshots.daemon_threads import DaemonPool
from snapshots.filesystem import Folder
from snapshots.filesystem.errors import PathObstructed
from snapshots.format.manifest import Manifest
from snapshots.restore.snapshot import newest_snapshot

REQUESTS_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class OperatorSummary:
    """An operator and its newest version.

    Attributes
    ----------
    operator_id, uri : str
        The name of the folder, and its URI.
    newest : Manifest or None
        The newest version; None if it cannot be read.
    problem : KeyGroupsError or None
        Why it cannot be read.
    """

    operator_id: str
    uri: str
    newest: Manifest | None
    problem: KeyGroupsError | None

    __repr__ = fields_repr


@dataclass(frozen=True, slots=True)
class Operators:
    """The operators under a folder.

    Attributes
    ----------
    uri : str
        The folder.
    found : tuple of OperatorSummary
        The operators, by name.
    folders : int
        How many names the folder has, however many of them were looked into.
    looked_into : int
        How many of them were.
    """

    uri: str
    found: tuple[OperatorSummary, ...]
    folders: int
    looked_into: int

    __repr__ = fields_repr


def operators_in(folder: Folder, limit: int) -> Operators:
    """Look into the folders in a folder, by name, for the newest snapshot of each: a few small requests for each.

    Parameters
    ----------
    folder : Folder
        The folder above the operators' own; an operator's own folder is listed alone.
    limit : int
        The most folders to look into.

    Raises
    ------
    OSError
        The storage does not answer, or does not let this process list the folder.
    """
    own = _summary_of(folder)
    if own is not None and not isinstance(own.problem, OSError):
        return Operators(folder.uri, (own,), 1, 1)
    names = [name for name in folder.names("") if not name.startswith(".")]
    looked_into = names[:limit]
    with DaemonPool(REQUESTS_AT_ONCE) as pool:
        found = pool.map(_summary_of, (folder.child(name) for name in looked_into))
        return Operators(folder.uri, tuple(one for one in found if one is not None), len(names), len(looked_into))


def _summary_of(folder: Folder) -> OperatorSummary | None:
    """Return what a folder holds; None if it is no operator's, or no folder."""
    try:
        newest = newest_snapshot(folder)
    except PathObstructed:
        return None
    except KeyGroupsError as error:
        return OperatorSummary(folder.operator_id, folder.uri, None, error)
    if newest is None:
        return None
    return OperatorSummary(folder.operator_id, folder.uri, newest.manifest, None)
