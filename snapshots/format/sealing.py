"""Canonical JSON with a digest of itself, so that a change of any of its bytes is detected."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
from collections.abc import Mapping
from typing import Any

from keygroups.errors import ConfigError
from snapshots.errors import SnapshotCorrupted
from snapshots.format.compression import decompressed

UNLESS_NONE: Mapping[str, bool] = {"unless_none": True}
"""The metadata of a dataclass field that is left out of the JSON if it is None, as if there were no such field."""


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
    always, unless_none = _names_of(type(part))  # type: ignore[arg-type]  # every class is hashable
    fields = {name: getattr(part, name) for name in always}
    for name in unless_none:
        value = getattr(part, name)
        if value is not None:
            fields[name] = value
    return fields


@functools.cache
def _names_of(kind: type[Any]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    fields = dataclasses.fields(kind)
    optional = tuple(field.name for field in fields if field.metadata == UNLESS_NONE)
    return tuple(field.name for field in fields if field.name not in optional), optional


def check_json(name: str, value: object) -> None:
    """Check that an argument survives being stored in a manifest.

    Raises
    ------
    ConfigError
        It contains something other than dicts with str keys, lists, str, finite numbers, booleans and None.
    """
    try:
        kept = json.loads(canonical(value)) == value
    except (AttributeError, TypeError, ValueError):
        kept = False
    if not kept:
        reason = "is stored as JSON, so use dicts with str keys, lists, str, finite numbers, booleans and None only"
        raise ConfigError(name, value, reason)


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
