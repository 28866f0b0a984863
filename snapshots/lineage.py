"""The lineage of an operator or a job: the part of its idempotency keys that no other one has."""

from __future__ import annotations

import secrets

from keygroups.names import LINEAGE_NAME
from snapshots.errors import IncompatibleSnapshot, SnapshotCorrupted
from snapshots.filesystem import Folder, attempts, is_transient
from snapshots.format.manifest import Manifest

LINEAGE = "lineage"
"""The object in an operator's folder that has its lineage before there is any manifest."""

_BYTES_MAX = 64

_CHANGED = (
    "with another lineage, calls that were made already would be made again: pass the lineage of the snapshot, or no "
    "namespace; if you mean to change it, stop what runs and call store.edit().set_lineage({!r}).commit()"
)

_MEND = "write the manifest's lineage into this object, or remove it"


def new_lineage() -> str:
    """Return a lineage that no other operator has: 96 random bits as text."""
    return secrets.token_hex(12)


def lineage_of(folder: Folder, manifest: Manifest | None, namespace: str | None = None) -> str:
    """Return the lineage of an operator, which is durable when this returns. Call it before the first call is made.

    Parameters
    ----------
    folder : Folder
        The operator's folder.
    manifest : Manifest or None
        The newest manifest, from which the operator goes on.
    namespace : str, optional
        The lineage that the user has chosen. By default an operator that begins with nothing gets a random one. It is
        kept in the folder, so that it is the same after a crash before the first commit, and for two starters that
        race.

    Raises
    ------
    IncompatibleSnapshot
        The manifest has another lineage than the namespace.
    SnapshotCorrupted
        The stored lineage is damaged.
    """
    check_lineage(manifest, namespace)
    if manifest is not None and manifest.lineage is not None:
        return manifest.lineage
    return _minted(folder) if namespace is None else _fixed(folder, namespace)


def first_lineage(folder: Folder) -> str:
    """Return the lineage of a first manifest that is committed before any call: what the folder keeps, or a new one."""
    try:
        return _stored(folder)
    except FileNotFoundError:
        return new_lineage()


def adopt_lineage(folder: Folder, lineage: str | None) -> None:
    """Bring the folder's object in line with a manifest that was committed with another lineage on purpose."""
    if lineage is not None and folder.exists(LINEAGE) and folder.read(LINEAGE, 0, _BYTES_MAX + 1) != lineage.encode():
        folder.replace(LINEAGE, lineage.encode())


def verify_lineage(folder: Folder, manifest: Manifest) -> None:
    """Check that the folder's object agrees with the newest manifest: without manifests, it alone makes the keys.

    Raises
    ------
    SnapshotCorrupted
        The object is damaged, or of another operator.
    """
    try:
        stored = _stored(folder)
    except FileNotFoundError:
        return
    if manifest.lineage is not None and stored != manifest.lineage:
        damage = (
            f"it is {stored!r}, and the newest manifest has {manifest.lineage!r}, with which calls were made: {_MEND}"
        )
        raise SnapshotCorrupted(folder.path(LINEAGE), damage)


def check_lineage(manifest: Manifest | None, namespace: str | None) -> None:
    """Check that a namespace is the lineage of a manifest, before anything is claimed or called.

    Raises
    ------
    IncompatibleSnapshot
        It is another one.
    """
    found = None if manifest is None else manifest.lineage
    if found is not None and namespace not in (None, found):
        raise IncompatibleSnapshot("idempotency namespace", namespace, found, _CHANGED.format(namespace))


def _minted(folder: Folder) -> str:
    for _ in attempts():
        try:
            folder.create(LINEAGE, new_lineage().encode())
        except FileExistsError:
            return _stored(folder)
        except OSError as error:
            if not is_transient(error):
                raise
            failure = error  # it may have taken effect, so the next attempt may find it
        else:
            return _stored(folder)
    raise failure


def _fixed(folder: Folder, namespace: str) -> str:
    """Keep a namespace for a start without it. Nothing is in flight yet under the lineage that it replaces."""
    if not folder.exists(LINEAGE) or _stored(folder) != namespace:
        folder.replace(LINEAGE, namespace.encode())
    return namespace


def _stored(folder: Folder) -> str:
    text = folder.read(LINEAGE, 0, _BYTES_MAX + 1).decode(errors="replace")
    if not LINEAGE_NAME.fits(text):
        raise SnapshotCorrupted(folder.path(LINEAGE), "it is no lineage; restore it, or remove it if no call counts")
    return text
