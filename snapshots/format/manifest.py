"""The manifest: a snapshot exists if and only if its manifest exists."""

from __future__ import annotations

import base64
import functools
import os
import platform
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import pyarrow as pa

from keygroups.errors import ConfigError
from keygroups.names import DATA_PATH, split_step
from keygroups.ranges import KeyGroupRange
from keygroups.state.timers import TIMER_STATES
from snapshots.format.manifest_schema import FileKind, OperatorStateMode
from snapshots.format.sealing import UNLESS_NONE


def encode_schema(schema: pa.Schema) -> str:
    """Return the Base64 text of an Arrow IPC schema message."""
    return base64.b64encode(schema.serialize()).decode()


def decode_schema(text: str | bytes) -> pa.Schema:
    """Decode the text of `encode_schema`."""
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))


VERSION_DIGITS = 20


def version_name(version: int) -> str:
    """Return a version as it appears in file names, which sort like versions.

    Raises
    ------
    ConfigError
        The version is invalid.
    """
    is_whole = hasattr(version, "__index__") and not isinstance(version, bool)
    if not is_whole or not 0 < version < 10**VERSION_DIGITS:
        raise ConfigError("version", version, "versions are whole numbers from 1")
    return f"{version:0{VERSION_DIGITS}d}"


def is_version_name(name: str) -> bool:
    """Return whether a name is the name of a version."""
    return len(name) == VERSION_DIGITS and name.isascii() and name.isdigit() and int(name) > 0


FORMAT_VERSION = 1
MANIFEST_BYTES_MAX = 256 * 2**20
"""A larger manifest, or list of files, is refused before it is parsed."""

FILE_BYTES_MAX = 2**40
OPERATOR_ITEMS_MAX = 2**24
FOOTER_BYTES_MAX = 256 * 2**20
"""A file that claims more of anything is refused before memory is allocated for it."""

Operation = Literal["write", "claim", "repartition", "compact", "rewrite", "bootstrap", "edit", "copy"]


def manifest_name(version: int) -> str:
    """Return the path of a version's manifest in the operator's folder.

    Raises
    ------
    ConfigError
        The version is invalid.
    """
    return f"manifests/{version_name(version)}.json"


_SPENT = "spent_"


def named_by_unit(spent: Mapping[str, float]) -> dict[str, float]:
    """Return what calls have cost under the names that `metrics` has for it.

    Examples
    --------
    >>> named_by_unit({"tokens": 12})
    {'spent_tokens': 12}
    """
    return {f"{_SPENT}{unit}": amount for unit, amount in spent.items()}


def spent_by_unit(counted: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Return what calls have cost by unit, according to the counts of several subtasks or epochs."""
    total: dict[str, float] = {}
    for name, amount in (item for one in counted for item in one.items() if item[0].startswith(_SPENT)):
        unit = name.removeprefix(_SPENT)
        total[unit] = total.get(unit, 0) + amount
    return total


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFile:
    """An immutable Parquet file, or the part of a file that is still valid.

    A manifest may name a file twice, for two ranges, after a newer file has replaced the range between them.

    Attributes
    ----------
    kind : {"keyed", "delta", "in_flight", "operator", "output"}
        What the rows of the file are.
    state : str or None
        The name of the state, for keyed and operator state; for elements and outputs of a job, the name of the step.
    subtask : int
        The subtask that wrote it; for in-flight elements, the channel.
    version : int
        The snapshot that added it. A delta modifies the content of files of lower versions.
    parent_id : str or None
        For a delta, the id of the snapshot on which it is based.
    folds : bool
        For a delta, whether it holds all changes since the base, so that it replaces the earlier deltas.
    key_groups : KeyGroupRange
        The range for which it is valid; rows of other key groups are not read.
    file_key_groups : KeyGroupRange
        The range for which it was written.
    path : str
        The path relative to the operator's folder.
    rows, bytes, footer_bytes : int
        The size of the whole file, and the size of its Parquet footer with the trailing length and magic.
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
        DATA_PATH.check("path", self.path)
        if self.key_groups.intersection(self.file_key_groups) != self.key_groups:
            raise ValueError(f"{self.path} holds for {self.key_groups}, but was written for {self.file_key_groups}")
        rows_max = OPERATOR_ITEMS_MAX if self.kind == "operator" else FILE_BYTES_MAX
        for name, most in (("rows", rows_max), ("bytes", FILE_BYTES_MAX), ("footer_bytes", FOOTER_BYTES_MAX)):
            if not 0 <= getattr(self, name) <= most:
                raise ValueError(f"{self.path} has {getattr(self, name)} {name}")
        if self.footer_bytes > self.bytes:
            raise ValueError(f"{self.path} has a footer of {self.footer_bytes} bytes in {self.bytes}")

    @classmethod
    def from_fields(cls, fields: dict[str, Any]) -> DataFile:
        """Return the file of which these are the fields, with ranges as dicts, as `dataclasses.asdict` makes them.

        Raises
        ------
        KeyError, TypeError, ValueError
            A field is missing, unknown or wrong.
        """
        ranges = {name: KeyGroupRange(**fields[name]) for name in ("key_groups", "file_key_groups")}
        return cls(**(fields | ranges))


@dataclass(frozen=True, slots=True)
class StateInfo:
    """How a keyed state is stored.

    Attributes
    ----------
    name, kind : str
        As declared; in a job, the name is `step.state`.
    type : str or None
        The Arrow type as text, for people; None if values are msgpack.
    schema : str or None
        The Arrow type, as the Base64 text of an Arrow IPC schema message with the one field `value`.
    codec : str
        The encoding of values: "arrow-1" or "msgpack-1".
    field_ids : dict of str to int
        The Parquet field id of each column and nested field, by its path; a path keeps its id in later snapshots.
    last_field_id : int
        The highest id that was ever assigned; ids are never reused.
    codecs : tuple of str
        The codecs of users' types that its values or map keys may use.
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
        """The Arrow type of the values; None if they are msgpack."""
        return None if self.schema is None else decode_schema(self.schema).field("value").type


@dataclass(frozen=True, slots=True)
class OperatorStateInfo:
    """How a rescale redistributes the items of an operator state."""

    name: str
    mode: OperatorStateMode


@dataclass(frozen=True, slots=True, kw_only=True)
class Channel:
    """One subtask of the run that wrote the snapshot, as a source of in-flight elements.

    Attributes
    ----------
    subtask : int
        The number of the subtask.
    key_groups : KeyGroupRange
        The range that it owned.
    watermark : int or None
        The newest watermark that it had emitted.
    cut_id : str or None
        The id of its barrier, if the snapshot's content of that range is exactly the content at that barrier.
    keyless : int
        The number of its in-flight records without a key.
    step : str or None
        The step of the job; None if the snapshot is of one operator.
    """

    subtask: int
    key_groups: KeyGroupRange
    watermark: int | None
    cut_id: str | None
    keyless: int
    step: str | None = field(default=None, metadata=UNLESS_NONE)


@dataclass(frozen=True, slots=True, kw_only=True)
class ListInfo:
    """What a manifest says about a list of files that is stored by itself.

    Attributes
    ----------
    path : str
        The path relative to the operator's folder.
    key_groups : KeyGroupRange
        The smallest range with the key groups of all its files and channels.
    files, channels : int
        The number of each.
    bytes, sha256 : int, str
        The size and the digest of the stored list.
    """

    path: str
    key_groups: KeyGroupRange
    files: int
    channels: int
    bytes: int
    sha256: str

    def __post_init__(self) -> None:
        DATA_PATH.check("path", self.path)
        if not 0 < self.bytes <= MANIFEST_BYTES_MAX:
            raise ValueError(f"{self.path} has {self.bytes} bytes")


@dataclass(frozen=True, slots=True, weakref_slot=True)
class FileList:
    """A list of files: an immutable part of one manifest or of several, stored by itself.

    Attributes
    ----------
    info : ListInfo
        What manifests say about it.
    files, channels : tuple of DataFile, tuple of Channel
        The entries.
    """

    info: ListInfo
    files: tuple[DataFile, ...]
    channels: tuple[Channel, ...] = ()

    @property
    def entries(self) -> tuple[DataFile | Channel, ...]:
        """The files and the channels."""
        return (*self.files, *self.channels)


@functools.cache
def library_versions() -> dict[str, str]:
    """Return the process that writes a manifest, and the versions of its libraries, for people."""
    import importlib.metadata  # expensive: it also imports an e-mail parser

    process = f"process {os.getpid()} on {platform.node()}"
    versions = {"python": platform.python_version(), "pyarrow": pa.__version__, "process": process}
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
        The version: 1, 2, 3 …
    snapshot_id : str
        A unique id; a commit reads it back to find out whether it won.
    parent_version, parent_id : int or None, str or None
        The snapshot on which this one is based.
    created_at : str
        ISO 8601, for people; never compared.
    operator_id : str
        The operator that the state belongs to.
    max_parallelism, parallelism : int
        The number of key groups, and the default parallelism for a restore.
    hash, key_encoding : str
        The hash that maps keys to key groups, and the encoding of keys.
    states : tuple of StateInfo
        The keyed states.
    operator_states : tuple of OperatorStateInfo
        The states that belong to a subtask rather than to a key.
    files : tuple of DataFile
        All files, including files of older versions that are still valid.
    channels : tuple of Channel
        The subtasks that wrote the in-flight elements.
    in_flight_count : int
        In-flight elements, watermarks included.
    source_position : dict or None
        What the writer needs to continue its source exactly from here.
    output_schema : str or None
        The schema of its outputs, even if there are none, as the Base64 text of an Arrow IPC schema message.
    metrics : dict of str to number
        Counters of the epoch that wrote it.
    operation : {"write", "claim", "repartition", "compact", "rewrite", "bootstrap", "edit", "copy"}
        Why it was committed.
    required_features : tuple of str
        The features that a reader must support beyond the base of the format version.
    written_by : dict of str to str
        The versions of the libraries, and the process, for people.
    lineage : str or None
        The first part of all idempotency keys; None if the writer makes no calls that need keys.
    file_lists : tuple of FileList
        The lists in which some of its files and channels are stored; before a commit, its parent's lists.
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
    output_schema: str | None = None
    metrics: dict[str, float]
    operation: Operation = "write"
    required_features: tuple[str, ...] = ()
    written_by: dict[str, str] = field(default_factory=library_versions)
    lineage: str | None = field(default=None, metadata=UNLESS_NONE)
    file_lists: tuple[FileList, ...] = field(default=(), compare=False)

    def __repr__(self) -> str:
        return f"Manifest(version={self.version}, operator_id={self.operator_id!r})"  # a field of many, and large

    @property
    def watermarks(self) -> tuple[int | None, ...]:
        """The newest watermark that each channel had emitted."""
        return tuple(channel.watermark for channel in self.channels)

    @property
    def step_names(self) -> tuple[str, ...]:
        """The steps of the job, in order; none if the snapshot is of one operator."""
        return tuple(dict.fromkeys(channel.step for channel in self.channels if channel.step is not None))

    @property
    def whole_files(self) -> tuple[DataFile, ...]:
        """Each file once, however many of its ranges are still valid."""
        return tuple({file.path: file for file in self.files}.values())

    @property
    def objects(self) -> tuple[DataFile | ListInfo, ...]:
        """Each stored object that it names: the files and the lists."""
        return (*self.whole_files, *(one.info for one in self.file_lists))

    @property
    def rows_total(self) -> int:
        """The rows of all files."""
        return sum(file.rows for file in self.whole_files)

    @property
    def bytes_total(self) -> int:
        """The bytes of all files."""
        return sum(file.bytes for file in self.whole_files)

    def files_of(self, *kinds: FileKind, state: str | None = None) -> tuple[DataFile, ...]:
        """Return the files of some kinds; with `state`, only this state's files."""
        return tuple(file for file in self.files if file.kind in kinds and (state is None or file.state == state))

    def state(self, name: str) -> StateInfo | None:
        """Return a keyed state by name, or None if there is no such state."""
        return next((info for info in self.states if info.name == name), None)

    def operator_state(self, name: str) -> OperatorStateInfo | None:
        """Return an operator state by name, or None if there is no such state."""
        return next((info for info in self.operator_states if info.name == name), None)


def features_of(files: Iterable[DataFile], states: Iterable[StateInfo], channels: Iterable[Channel]) -> tuple[str, ...]:
    """Return the features that a reader of these files, keyed states and channels must support."""
    kinds = {file.kind for file in files}
    states = tuple(states)
    has_steps = any(channel.step is not None for channel in channels)
    names = (split_step(state.name)[1] if has_steps else state.name for state in states)
    has_entries = any(state.kind in {"list", "map"} for state in states)
    named = {
        "codecs": any(state.codecs for state in states),
        "delta": "delta" in kinds,
        "element_columns": "in_flight" in kinds,
        "entries": has_entries,
        "operator_state": "operator" in kinds,
        "steps": has_steps,
        "timers": any(name in TIMER_STATES for name in names),
        "ttl": any("expires_at" in state.field_ids for state in states),
    }
    return tuple(feature for feature, is_needed in named.items() if is_needed)
