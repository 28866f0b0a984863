"""The manifest: the one small object whose existence makes a snapshot exist."""

from __future__ import annotations

import base64
import dataclasses
import functools
import hashlib
import json
import platform
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar, get_args

import pyarrow as pa

from keygroups.errors import ConfigError
from keygroups.ranges import MAX_KEY_GROUPS, KeyGroupRange
from snapshots.compression import compressed, decompressed
from snapshots.errors import IncompatibleSnapshot, SnapshotCorrupted
from snapshots.features import FEATURES

FORMAT_VERSION = 1
MANIFEST_BYTES_MAX = 256 * 2**20
"""A larger manifest is refused before it is parsed."""

FILES_MAX = 1_000_000
STATES_MAX = 10_000
FILE_BYTES_MAX = 2**40
OPERATOR_ITEMS_MAX = 2**24
FOOTER_BYTES_MAX = 256 * 2**20
"""A manifest that promises more of anything is refused before memory is taken for it."""

FileKind = Literal["keyed", "delta", "in_flight", "operator", "output"]
OperatorStateMode = Literal["split", "union", "broadcast"]

Operation = Literal["write", "claim", "repartition", "compact", "rewrite", "bootstrap", "edit", "copy"]


def check_json(name: str, value: object) -> None:
    """Refuse an argument that would not come back from a manifest as it is.

    Raises
    ------
    ConfigError
        It holds something else than dicts with text as keys, lists, text, finite numbers, booleans and None.
    """
    try:
        kept = json.loads(_canonical(value)) == value
    except (AttributeError, TypeError, ValueError):
        kept = False
    if not kept:
        reason = "is stored as JSON, so use dicts with str keys, lists, str, finite numbers, booleans and None only"
        raise ConfigError(name, value, reason)


def manifest_name(version: int) -> str:
    """Return the path of a version's manifest in the operator's folder."""
    return f"manifests/{version:020d}.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFile:
    """An immutable Parquet file, or the part of one that still holds.

    A file may be named twice in a manifest, for two ranges, after a newer file has replaced what lay between them.

    Attributes
    ----------
    kind : {"keyed", "delta", "in_flight", "operator", "output"}
        What its rows are.
    state : str or None
        The state's name, for keyed and operator state.
    subtask : int
        Who wrote it; for in-flight elements the channel.
    version : int
        The snapshot that added it; a delta changes what the files of lower versions say.
    parent_id : str or None
        For a delta, the id of the snapshot that it was written on.
    folds : bool
        For a delta, whether it holds all changes since the base: it took the place of the deltas before it.
    key_groups : KeyGroupRange
        The range for which it holds; rows of other key groups are not read.
    file_key_groups : KeyGroupRange
        The range that it was written for.
    path : str
        Relative to the operator's folder.
    rows, bytes, footer_bytes : int
        The size of the whole file, and that of its Parquet footer with the trailing length and magic.
    sha256, footer_sha256 : str
        Digests of the whole file and of that footer.
    """

    kind: FileKind
    state: str | None
    subtask: int
    version: int
    parent_id: str | None = None
    folds: bool = False
    key_groups: KeyGroupRange
    file_key_groups: KeyGroupRange
    path: str
    rows: int
    bytes: int
    sha256: str
    footer_bytes: int
    footer_sha256: str

    def __post_init__(self) -> None:
        if self.key_groups.intersection(self.file_key_groups) != self.key_groups:
            raise ValueError(f"{self.path} holds for {self.key_groups}, but was written for {self.file_key_groups}")
        rows_max = OPERATOR_ITEMS_MAX if self.kind == "operator" else FILE_BYTES_MAX
        for name, most in (("rows", rows_max), ("bytes", FILE_BYTES_MAX), ("footer_bytes", FOOTER_BYTES_MAX)):
            if not 0 <= getattr(self, name) <= most:
                raise ValueError(f"{self.path} has {getattr(self, name)} {name}")
        if self.footer_bytes > self.bytes:
            raise ValueError(f"{self.path} has a footer of {self.footer_bytes} bytes in {self.bytes}")


@dataclass(frozen=True, slots=True)
class StateInfo:
    """How a keyed state is stored.

    Attributes
    ----------
    name, kind : str
        As declared.
    type : str or None
        The Arrow type as text, for people; None where values are msgpack.
    schema : str or None
        The Arrow type, as the Base64 text of an Arrow IPC schema message with the one field `value`.
    codec : str
        How values are written: "arrow-1" or "msgpack-1".
    field_ids : dict of str to int
        The Parquet field id of each column and nested field, by its path; a path keeps its id in later snapshots.
    last_field_id : int
        The highest id that was ever given; an id is not given twice.
    codecs : tuple of str
        The codecs of users' own types that its values, or map keys, may have.
    """

    name: str
    kind: str
    type: str | None
    schema: str | None
    codec: str
    field_ids: dict[str, int]
    last_field_id: int
    codecs: tuple[str, ...] = ()

    @property
    def arrow_type(self) -> pa.DataType | None:
        """The Arrow type of the values; None where they are msgpack."""
        if self.schema is None:
            return None
        return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(self.schema))).field("value").type


@dataclass(frozen=True, slots=True)
class OperatorStateInfo:
    """How the items of an operator state are dealt after a rescale."""

    name: str
    mode: OperatorStateMode


@dataclass(frozen=True, slots=True, kw_only=True)
class Channel:
    """One subtask of the run that wrote the snapshot, as a source of in-flight elements.

    Attributes
    ----------
    subtask : int
        Its number.
    key_groups : KeyGroupRange
        The range that it owned.
    watermark : int or None
        The newest watermark that it had emitted.
    cut_id : str or None
        Its barrier, if the snapshot's keyed state of that range is exactly what was cut there.
    keyless : int
        How many in-flight records without a key it had.
    """

    subtask: int
    key_groups: KeyGroupRange
    watermark: int | None
    cut_id: str | None
    keyless: int


@functools.cache
def library_versions() -> dict[str, str]:
    """Return what wrote a manifest, for people."""
    import importlib.metadata  # with it comes a reader of e-mails

    versions = {"python": platform.python_version(), "pyarrow": pa.__version__}
    try:
        return versions | {"keygroups": importlib.metadata.version("keygroups")}
    except importlib.metadata.PackageNotFoundError:
        return versions


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
        The keyed states.
    operator_states : tuple of OperatorStateInfo
        The states that belong to a subtask rather than to a key.
    files : tuple of DataFile
        All files, also those of an older version that still hold.
    channels : tuple of Channel
        The subtasks that wrote the in-flight elements.
    in_flight_count : int
        In-flight elements, watermarks included.
    source_position : dict or None
        What the writer needs to continue its source exactly there.
    metrics : dict of str to int
        Counters of the epoch that wrote it.
    operation : {"write", "claim", "repartition", "compact", "rewrite", "bootstrap", "edit", "copy"}
        Why it was committed.
    required_features : tuple of str
        What a reader must know beyond the format version's beginnings.
    written_by : dict of str to str
        Versions of the libraries, for people.
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
    operator_states: tuple[OperatorStateInfo, ...] = ()
    files: tuple[DataFile, ...]
    channels: tuple[Channel, ...]
    in_flight_count: int
    source_position: dict[str, Any] | None
    metrics: dict[str, int]
    operation: Operation = "write"
    required_features: tuple[str, ...] = ()
    written_by: dict[str, str] = field(default_factory=library_versions)

    @property
    def watermarks(self) -> tuple[int | None, ...]:
        """Per channel, the newest watermark that it had emitted."""
        return tuple(channel.watermark for channel in self.channels)

    @property
    def whole_files(self) -> tuple[DataFile, ...]:
        """Each file once, however many of its ranges still hold."""
        return tuple({file.path: file for file in self.files}.values())

    @property
    def rows_total(self) -> int:
        """Rows of all files."""
        return sum(file.rows for file in self.whole_files)

    @property
    def bytes_total(self) -> int:
        """Bytes of all files."""
        return sum(file.bytes for file in self.whole_files)

    def files_of(self, *kinds: FileKind, state: str | None = None) -> tuple[DataFile, ...]:
        """Return the files of some kinds, and of a state if one is named."""
        return tuple(file for file in self.files if file.kind in kinds and (state is None or file.state == state))

    def state(self, name: str) -> StateInfo | None:
        """Return a keyed state by name."""
        return next((info for info in self.states if info.name == name), None)

    def to_bytes(self) -> bytes:
        """Encode as JSON around a checksum of the body, compressed if it is large."""
        return compressed(_sealed(_canonical(_as_object(self) | {"format_version": FORMAT_VERSION})))

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
        newer = "read it with a newer release"
        if body.get("format_version") != FORMAT_VERSION:
            raise IncompatibleSnapshot("format version", FORMAT_VERSION, body.get("format_version"), newer)
        features = body.get("required_features")
        for feature in features if isinstance(features, list) else ():
            if feature not in FEATURES:
                raise IncompatibleSnapshot("a required feature", sorted(FEATURES), feature, newer)
        try:
            return _parse(body)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise SnapshotCorrupted(path, f"a field is missing or wrong ({error})") from error


def _canonical(value: object) -> bytes:
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False, default=_as_object
    ).encode()


def _as_object(part: Any) -> dict[str, Any]:
    # Not `dataclasses.asdict`, which copies every value: most of the time of a commit of many files.
    return {field.name: getattr(part, field.name) for field in dataclasses.fields(part)}


def _sealed(body: bytes) -> bytes:
    return b'{"manifest":%b,"sha256":"%b"}' % (body, hashlib.sha256(body).hexdigest().encode())


def _checked_body(data: bytes, path: str) -> dict[str, Any]:
    if len(data) > MANIFEST_BYTES_MAX:
        raise SnapshotCorrupted(path, f"{len(data)} bytes is more than a manifest may have")
    try:
        data = decompressed(data, MANIFEST_BYTES_MAX)
        body = json.loads(data)["manifest"]
        expected = _sealed(_canonical(body))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise SnapshotCorrupted(path, f"not a manifest ({error})") from error
    # Every byte is compared, not only what JSON makes of them: a manifest has one form.
    if not isinstance(body, dict) or data != expected:
        raise SnapshotCorrupted(path, "its checksum does not match")
    return body


def _parse(body: dict[str, Any]) -> Manifest:
    # A field that this release does not know is optional, or a required feature would name it.
    fields = _known(Manifest, body)
    fields["states"] = _items(StateInfo, fields["states"], STATES_MAX)
    fields["operator_states"] = _items(OperatorStateInfo, fields.get("operator_states", ()), STATES_MAX)
    fields["files"] = _items(DataFile, fields["files"], FILES_MAX)
    fields["channels"] = _items(Channel, fields["channels"], MAX_KEY_GROUPS)
    fields["required_features"] = tuple(fields.get("required_features", ()))
    fields.setdefault("written_by", {})
    manifest = Manifest(**fields)
    if not 0 < manifest.parallelism <= manifest.max_parallelism <= MAX_KEY_GROUPS:
        raise ValueError(f"parallelism {manifest.parallelism} of {manifest.max_parallelism}")
    for file in manifest.files:
        _check_file(file)
    return manifest


_Part = TypeVar("_Part", DataFile, Channel, StateInfo, OperatorStateInfo)


def _items(kind: type[_Part], items: list[dict[str, Any]], most: int) -> tuple[_Part, ...]:
    if len(items) > most:
        raise ValueError(f"{len(items)} of {kind.__name__}, at most {most}")
    return tuple(kind(**_with_ranges(_known(kind, item))) for item in items)


def _known(kind: type[Any], fields: dict[str, Any]) -> dict[str, Any]:
    return {field.name: fields[field.name] for field in dataclasses.fields(kind) if field.name in fields}


def _with_ranges(fields: dict[str, Any]) -> dict[str, Any]:
    names = {"codecs": tuple(fields["codecs"])} if "codecs" in fields else {}
    ranges = {name: KeyGroupRange(**fields[name]) for name in ("key_groups", "file_key_groups") if name in fields}
    return fields | ranges | names


def _check_file(file: DataFile) -> None:
    path = file.path
    if path.startswith("/") or ".." in path.split("/") or not path.startswith("data/"):
        raise ValueError(f"path {path!r} leaves the operator's folder")
    if file.kind not in get_args(FileKind):
        raise ValueError(f"a file of kind {file.kind!r}")
