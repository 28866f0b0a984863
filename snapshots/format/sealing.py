"""Canonical JSON with a digest of itself, so that a change of any byte is detected."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from typing import Any

from snapshots.errors import SnapshotCorrupted
from snapshots.format.compression import decompressed


def canonical(value: object) -> bytes:
    """Return the canonical JSON of a value; dataclasses become objects with their fields.

    Raises
    ------
    TypeError, ValueError
        The value cannot be represented in JSON.
    """
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False, default=fields_of
    ).encode()


def fields_of(part: Any) -> dict[str, Any]:
    """Return the fields of a dataclass by name."""
    # Not `dataclasses.asdict`, which copies every value and would dominate the commit of many files.
    return {field.name: getattr(part, field.name) for field in dataclasses.fields(part)}


def sealed(body: bytes) -> bytes:
    """Return a canonical body with its digest."""
    return b'{"manifest":%b,"sha256":"%b"}' % (body, hashlib.sha256(body).hexdigest().encode())


def opened(data: bytes, path: str, bytes_max: int) -> dict[str, Any]:
    """Return the body of sealed, possibly compressed, data; `path` is for error messages.

    Raises
    ------
    SnapshotCorrupted
        The data are too large, or a byte has changed.
    """
    if len(data) > bytes_max:
        raise SnapshotCorrupted(path, f"{len(data)} bytes is more than a manifest may have")
    try:
        data = decompressed(data, bytes_max)
        body = json.loads(data)["manifest"]
        expected = sealed(canonical(body))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise SnapshotCorrupted(path, f"not a manifest ({error})") from error
    # All bytes are compared, not only the decoded JSON, because a manifest has exactly one form.
    if not isinstance(body, dict) or data != expected:
        raise SnapshotCorrupted(path, "its checksum does not match")
    return body
