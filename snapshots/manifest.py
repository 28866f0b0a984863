"""The manifest: the one small object whose existence makes a snapshot exist."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass
from typing import Any, Literal

from keygroups.errors import ConfigError
from keygroups.ranges import MAX_KEY_GROUPS, KeyGroupRange
from snapshots.errors import IncompatibleSnapshot, SnapshotCorrupted

FORMAT_VERSION = 1
MANIFEST_BYTES_MAX = 256 * 2**20
"""A larger manifest is refused before it is parsed."""

FileKind = Literal["keyed", "in_flight", "output"]

Operation = Literal["write", "claim", "repartition", "compact", "rewrite", "bootstrap"]


def check_json(name: str, value: object) -> None:
    """Refuse an argument that would not come back from a manifest as it is.

    Raises
    ------
    ConfigError
        It holds something else than dicts with text as keys, lists, text, finite numbers, booleans and None.
    """
    try:
        kept = json.loads(_canonical(value)) == value
    except (TypeError, ValueError):
        kept = False
    if not kept:
        reason = "is stored as JSON, so use dicts with str keys, lists, str, finite numbers, booleans and None only"
        raise ConfigError(name, value, reason)


def manifest_name(version: int) -> str:
    """Return the path of a version's manifest in the operator's folder."""
    return f"manifests/{version:020d}.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFile:
    """An immutable Parquet file.

    Attributes
    ----------
    kind : {"keyed", "in_flight", "output"}
        What its rows are.
    state : str or None
        The state's name, for keyed state.
    subtask : int
        Who wrote it; for in-flight elements the channel.
    key_groups : KeyGroupRange
        The range that it covers.
    path : str
        Relative to the operator's folder.
    rows, bytes, footer_bytes : int
        Its size, and that of its Parquet footer with the trailing length and magic.
    sha256, footer_sha256 : str
        Digests of the whole file and of that footer.
    """

    kind: FileKind
    state: str | None
    subtask: int
    key_groups: KeyGroupRange
    path: str
    rows: int
    bytes: int
    sha256: str
    footer_bytes: int
    footer_sha256: str


@dataclass(frozen=True, slots=True)
class StateInfo:
    """How a state is declared: its name, kind and Arrow type as text (None for msgpack)."""

    name: str
    kind: str
    type: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """A complete description of one snapshot.

    Attributes
    ----------
    version : int
        1, 2, 3 …
    snapshot_id : str
        Unique; what a commit reads back to learn whether it won.
    parent_version, parent_id : int or None, str or None
        The snapshot that it continues.
    created_at : str
        ISO 8601, for people; never compared.
    operator_id : str
        Whose state it is.
    max_parallelism, parallelism : int
        G, and the P with which it is to be restored unless told otherwise.
    hash, key_encoding : str
        How a key becomes a key group, and how keys are written.
    states : tuple of StateInfo
        The states, by name.
    files : tuple of DataFile
        All files, also those of an older version that still hold.
    watermarks : tuple of (int or None)
        Per channel, the newest watermark that it had emitted.
    in_flight_count : int
        In-flight elements, watermarks included.
    source_position : dict or None
        What the writer needs to continue its source exactly there.
    metrics : dict of str to int
        Counters of the epoch that wrote it.
    operation : {"write", "claim", "repartition", "compact", "rewrite", "bootstrap"}
        Why it was committed.
    """

    version: int
    snapshot_id: str
    parent_version: int | None
    parent_id: str | None
    created_at: str
    operator_id: str
    max_parallelism: int
    parallelism: int
    hash: str
    key_encoding: str
    states: tuple[StateInfo, ...]
    files: tuple[DataFile, ...]
    watermarks: tuple[int | None, ...]
    in_flight_count: int
    source_position: dict[str, Any] | None
    metrics: dict[str, int]
    operation: Operation = "write"

    @property
    def rows_total(self) -> int:
        """Rows of all files."""
        return sum(file.rows for file in self.files)

    @property
    def bytes_total(self) -> int:
        """Bytes of all files."""
        return sum(file.bytes for file in self.files)

    def files_of(self, kind: FileKind, state: str | None = None) -> tuple[DataFile, ...]:
        """Return the files of a kind, and of a state if one is named."""
        return tuple(file for file in self.files if file.kind == kind and (state is None or file.state == state))

    def to_bytes(self) -> bytes:
        """Encode as JSON around a checksum of the body."""
        return _sealed(_canonical(dataclasses.asdict(self) | {"format_version": FORMAT_VERSION}))

    @classmethod
    def from_bytes(cls, data: bytes, path: str) -> Manifest:
        """Decode and check a manifest; `path` is for errors.

        Raises
        ------
        SnapshotCorrupted
            The bytes are not what was written.
        IncompatibleSnapshot
            They were written by a newer version of the format.
        """
        body = _checked_body(data, path)
        if body.get("format_version") != FORMAT_VERSION:
            raise IncompatibleSnapshot(
                "format version", FORMAT_VERSION, body.get("format_version"), "read it with a newer release"
            )
        try:
            return _parse(body)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise SnapshotCorrupted(path, f"a field is missing or wrong ({error})") from error


def _canonical(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def _sealed(body: bytes) -> bytes:
    return b'{"manifest":%b,"sha256":"%b"}' % (body, hashlib.sha256(body).hexdigest().encode())


def _checked_body(data: bytes, path: str) -> dict[str, Any]:
    if len(data) > MANIFEST_BYTES_MAX:
        raise SnapshotCorrupted(path, f"{len(data)} bytes is more than a manifest may have")
    try:
        body = json.loads(data)["manifest"]
        expected = _sealed(_canonical(body))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise SnapshotCorrupted(path, f"not a manifest ({error})") from error
    # Every byte is compared, not only what JSON makes of them: a manifest has one form.
    if not isinstance(body, dict) or data != expected:
        raise SnapshotCorrupted(path, "its checksum does not match")
    return body


def _parse(body: dict[str, Any]) -> Manifest:
    fields = dict(body)
    del fields["format_version"]
    fields["states"] = tuple(StateInfo(**state) for state in fields["states"])
    fields["files"] = tuple(_parse_file(file) for file in fields["files"])
    fields["watermarks"] = tuple(fields["watermarks"])
    manifest = Manifest(**fields)
    if not 0 < manifest.parallelism <= manifest.max_parallelism <= MAX_KEY_GROUPS:
        raise ValueError(f"parallelism {manifest.parallelism} of {manifest.max_parallelism}")
    return manifest


def _parse_file(fields: dict[str, Any]) -> DataFile:
    path = fields["path"]
    if path.startswith("/") or ".." in path.split("/") or not path.startswith("data/"):
        raise ValueError(f"path {path!r} leaves the operator's folder")
    return DataFile(**(fields | {"key_groups": KeyGroupRange(**fields["key_groups"])}))
