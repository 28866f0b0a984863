"""The commit: a manifest is created if its name is free, and counts once it has been read back."""

from __future__ import annotations

import datetime as dt
import uuid
from contextlib import suppress
from dataclasses import replace
from typing import Any

from keygroups.errors import KeyGroupsError
from keygroups.hashing import key_hasher
from keygroups.ranges import check_parallelism, range_of
from snapshots.commit.stored_lists import with_stored_lists
from snapshots.errors import (
    CommitConflict,
    CommitOutcomeUnknown,
    IncompatibleSnapshot,
    IncompleteSnapshot,
    SnapshotCorrupted,
)
from snapshots.filesystem import Folder, attempts, is_transient
from snapshots.format.columns import KEY_ENCODING
from snapshots.format.compression import plain_bytes
from snapshots.format.manifest import MANIFEST_BYTES_MAX, Channel, Manifest, Operation, library_versions, manifest_name
from snapshots.format.manifest_head import Head
from snapshots.versions import expired_version, load_head, note_newest, read_manifest


def next_manifest(parent: Manifest, operation: Operation, **changes: Any) -> Manifest:
    """Return the manifest of the next version, over the same files unless changed."""
    return replace(
        parent,
        version=parent.version + 1,
        snapshot_id=uuid.uuid4().hex,
        parent_version=parent.version,
        parent_id=parent.snapshot_id,
        created_at=now_text(),
        operation=operation,
        metrics={},
        written_by=library_versions(),
        **changes,
    )


def first_manifest(
    operator_id: str, parallelism: int, max_parallelism: int, hash_: str, operation: Operation, **content: Any
) -> Manifest:
    """Return the manifest of a first version; it is empty unless content is given.

    Raises
    ------
    ConfigError
        The parallelism or the hash is invalid.
    """
    check_parallelism(parallelism, max_parallelism)
    key_hasher(hash_)
    nothing: dict[str, Any] = {"states": (), "files": (), "source_position": None}
    return Manifest(
        version=1,
        snapshot_id=uuid.uuid4().hex,
        parent_version=None,
        parent_id=None,
        created_at=now_text(),
        operator_id=operator_id,
        max_parallelism=max_parallelism,
        parallelism=parallelism,
        hash=hash_,
        key_encoding=KEY_ENCODING,
        channels=tuple(
            Channel(
                subtask=subtask,
                key_groups=range_of(subtask, parallelism, max_parallelism),
                watermark=None,
                cut_id=None,
                keyless=0,
            )
            for subtask in range(parallelism)
        ),
        in_flight_count=0,
        metrics={},
        operation=operation,
        **nothing | content,
    )


def put_manifest(folder: Folder, manifest: Manifest, attempts_prefix: str = "") -> Manifest:
    """Create the manifest, or raise the exact reason why it could not be created.

    Parameters
    ----------
    folder : Folder
        The operator's folder.
    manifest : Manifest
        The manifest; with its parent's lists.
    attempts_prefix : str
        The prefix of the ids of all attempts of this commit, if there is one.

    Returns
    -------
    Manifest
        The same manifest with the lists in which it is stored.

    Raises
    ------
    CommitConflict
        Another writer has the version, or had it before it expired.
    CommitOutcomeUnknown
        The storage failed and could not be read back.
    SnapshotCorrupted
        The storage returned something other than what was written.
    IncompleteSnapshot
        The manifest is too large for readers; nothing was committed.
    OSError
        The storage refused, and nothing was committed.
    """
    manifest = with_stored_lists(folder, manifest, attempts_prefix + uuid.uuid4().hex[len(attempts_prefix) :])
    data = Head.of(manifest).to_bytes()
    if plain_bytes(data) > MANIFEST_BYTES_MAX:
        found = f"its manifest would have {plain_bytes(data)} bytes, and {MANIFEST_BYTES_MAX} at most can be read"
        raise IncompleteSnapshot(f"{found}: compact, or rewrite with fewer key groups or subtasks")
    if manifest.version <= expired_version(folder):
        # Its name may be free again, but not for this writer.
        raise CommitConflict(folder.uri, manifest.version)
    _create(folder, manifest, data)
    if _is_in_place(folder, manifest, data):
        note_newest(folder, manifest.version)
    else:
        _check_others_continue(folder, manifest)
    return manifest


def now_text() -> str:
    """Return the current time in ISO 8601, for people."""
    return dt.datetime.now(dt.UTC).isoformat(timespec="milliseconds")


def _create(folder: Folder, manifest: Manifest, data: bytes) -> None:
    """Put the same bytes until they are stored or the version is taken; only transient failures are retried."""
    name = manifest_name(manifest.version)
    for _ in attempts():
        try:
            folder.create(name, data)
        except OSError as error:
            # The reply to an earlier attempt may have been lost, so the winner may be this manifest itself.
            winner = _winner(folder, manifest)
            if winner not in (None, manifest.snapshot_id):
                raise CommitConflict(folder.uri, manifest.version) from error
            # If it was there and is gone, it has expired, and others know whose it was.
            if winner is not None or isinstance(error, FileExistsError):
                return
            if not is_transient(error):
                raise
            failure = error
        else:
            return
    # The request may still take effect.
    raise CommitOutcomeUnknown(folder.uri, manifest.version) from failure


def _winner(folder: Folder, manifest: Manifest) -> str | None:
    """Return the id of the snapshot that has the version, or None if the version is free."""
    try:
        data = _read_back(folder, manifest)
        return None if data is None else Head.from_bytes(data, manifest_name(manifest.version)).manifest.snapshot_id
    except IncompatibleSnapshot as error:
        # This release can read its own manifests, so another writer won.
        raise CommitConflict(folder.uri, manifest.version) from error
    except SnapshotCorrupted as error:
        raise CommitOutcomeUnknown(folder.uri, manifest.version) from error


def _is_in_place(folder: Folder, manifest: Manifest, data: bytes) -> bool:
    """Read back the manifest before its content is relied upon, and see that it has not expired."""
    stored = _read_back(folder, manifest)
    if stored is None:
        return False
    if stored != data:
        raise SnapshotCorrupted(folder.path(manifest_name(manifest.version)), "it is not what was just written")
    try:
        return manifest.version > expired_version(folder)
    except OSError as error:
        raise CommitOutcomeUnknown(folder.uri, manifest.version) from error


def _check_others_continue(folder: Folder, manifest: Manifest) -> None:
    """Tell a version that has expired since it was created from a name that was free because a version had expired."""
    try:
        successor = load_head(folder, manifest.version + 1).manifest
    except (KeyGroupsError, OSError) as error:
        raise CommitOutcomeUnknown(folder.uri, manifest.version) from error
    if successor.parent_id != manifest.snapshot_id:
        with suppress(OSError):
            folder.delete([manifest_name(manifest.version)])
        raise CommitConflict(folder.uri, manifest.version)


def _read_back(folder: Folder, manifest: Manifest) -> bytes | None:
    for _ in attempts():
        try:
            return read_manifest(folder, manifest.version)
        except FileNotFoundError:
            return None
        except OSError as error:
            failure = error
            if not is_transient(error):
                break
    raise CommitOutcomeUnknown(folder.uri, manifest.version) from failure
