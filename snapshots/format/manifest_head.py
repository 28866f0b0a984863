"""The head of a manifest: what its own object holds, which is all of it but for the entries of its lists."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, TypeVar

import pyarrow as pa

from keygroups.names import OPERATOR_STATE_NAME, STATE_NAME, split_step
from keygroups.ranges import KeyGroupRange, check_parallelism
from snapshots.errors import IncompatibleSnapshot, SnapshotCorrupted
from snapshots.format.compression import compressed
from snapshots.format.manifest import (
    FORMAT_VERSION,
    MANIFEST_BYTES_MAX,
    Channel,
    DataFile,
    FileList,
    ListInfo,
    Manifest,
    OperatorStateInfo,
    StateInfo,
)
from snapshots.format.manifest_schema import CHANNELS_MAX, FILES_MAX, wrong_field, wrong_field_of_list
from snapshots.format.sealing import canonical, fields_of, opened, sealed

FILE_LISTS = "file_lists"
"""The feature of a manifest with lists, and its field that names them."""

FEATURES = frozenset(
    {"codecs", "delta", "element_columns", "entries", FILE_LISTS, "operator_state", "steps", "timers", "ttl"}
)
"""The features that this release supports and that a manifest may require."""


@dataclass(frozen=True, slots=True)
class Head:
    """A manifest as it is stored.

    Attributes
    ----------
    manifest : Manifest
        The manifest without the files and channels that are in its lists.
    lists : tuple of ListInfo
        The lists; without any, the manifest is complete.
    """

    manifest: Manifest
    lists: tuple[ListInfo, ...] = ()

    @classmethod
    def of(cls, manifest: Manifest) -> Head:
        """Return the head of a complete manifest, whose files and channels begin with the content of its lists."""
        lists = tuple(one.info for one in manifest.file_lists)
        files = manifest.files[sum(info.files for info in lists) :]
        channels = manifest.channels[sum(info.channels for info in lists) :]
        return cls(replace(manifest, files=files, channels=channels, file_lists=()), lists)

    def with_lists(self, lists: Iterable[FileList]) -> Manifest:
        """Return the manifest with the entries of some of its lists, or of all.

        Raises
        ------
        ValueError
            An entry is of a step that is not there.
        """
        read = tuple(lists)
        manifest = replace(
            self.manifest,
            files=(*chain.from_iterable(one.files for one in read), *self.manifest.files),
            channels=(*chain.from_iterable(one.channels for one in read), *self.manifest.channels),
            file_lists=read,
        )
        _check_steps(manifest)
        return manifest

    def to_bytes(self) -> bytes:
        """Encode as JSON with a checksum of the body, compressed if it is large or has lists."""
        body = fields_of(self.manifest) | {"format_version": FORMAT_VERSION, FILE_LISTS: self.lists}
        if not self.lists:
            del body[FILE_LISTS]
        return compressed(sealed(canonical(body)), always=bool(self.lists))

    @classmethod
    def from_bytes(cls, data: bytes, path: str) -> Head:
        """Decode and check a manifest; `path` is for error messages.

        Raises
        ------
        SnapshotCorrupted
            The bytes are damaged.
        IncompatibleSnapshot
            The manifest was written in a newer version of the format.
        """
        body = opened(data, path, MANIFEST_BYTES_MAX)
        newer = "read it with a newer release"
        version, features = body.get("format_version"), body.get("required_features")
        if type(version) is not int or version != FORMAT_VERSION:
            raise IncompatibleSnapshot("format version", FORMAT_VERSION, version, newer)
        for feature in features if isinstance(features, list) else ():
            if isinstance(feature, str) and feature not in FEATURES:
                raise IncompatibleSnapshot("a required feature", sorted(FEATURES), feature, newer)
        return _parsed(body, path, wrong_field, _head)


def list_to_bytes(files: tuple[DataFile, ...], channels: tuple[Channel, ...]) -> bytes:
    """Encode the entries of a list like a manifest, compressed."""
    return compressed(sealed(canonical({"files": files, "channels": channels})), always=True)


def list_from_bytes(data: bytes, info: ListInfo, path: str) -> FileList:
    """Decode and check a list; `path` is for error messages.

    Raises
    ------
    SnapshotCorrupted
        The bytes are damaged, or they are not what the manifest says.
    """
    body = opened(data, path, MANIFEST_BYTES_MAX)
    return _parsed(body, path, wrong_field_of_list, lambda fields: _list(fields, info))


_Parsed = TypeVar("_Parsed")


def _parsed(
    body: dict[str, Any],
    path: str,
    wrong_in: Callable[[dict[str, Any]], str | None],
    parse: Callable[[dict[str, Any]], _Parsed],
) -> _Parsed:
    wrong = wrong_in(body)
    if wrong is not None:
        raise SnapshotCorrupted(path, f"a field is missing or wrong: {wrong}")
    try:
        return parse(body)
    except (KeyError, ValueError, OSError, pa.ArrowException) as error:
        raise SnapshotCorrupted(path, f"a field is wrong: {error}") from error


def _head(body: dict[str, Any]) -> Head:
    # A field that this release does not know is optional; otherwise a required feature would name it.
    fields = _known(Manifest, body)
    fields["states"] = _items(StateInfo, fields["states"])
    fields["operator_states"] = _items(OperatorStateInfo, fields["operator_states"])
    fields["files"] = _items(DataFile, fields["files"])
    fields["channels"] = _items(Channel, fields["channels"])
    fields["required_features"] = tuple(fields["required_features"])
    lists = _items(ListInfo, fields.pop(FILE_LISTS, []))
    manifest = Manifest(**fields)
    check_parallelism(manifest.parallelism, manifest.max_parallelism)
    for state in manifest.states:
        _ = state.arrow_type  # raises if it cannot be decoded
    if bool(lists) != (FILE_LISTS in manifest.required_features):
        raise ValueError(f"the field {FILE_LISTS} and the feature go together")
    if manifest.operator_states and any(info.channels for info in lists):
        raise ValueError("channels are in lists although there is operator state, which every subtask needs")
    _check_counts(manifest, lists)
    if not lists:
        _check_steps(manifest)
    return Head(manifest, lists)


def _check_counts(manifest: Manifest, lists: Iterable[ListInfo]) -> None:
    files = len(manifest.files) + sum(one.files for one in lists)
    channels = len(manifest.channels) + sum(one.channels for one in lists)
    if files > FILES_MAX or not 1 <= channels <= CHANNELS_MAX:
        raise ValueError(f"{files} files and {channels} channels, not up to {FILES_MAX}, and 1 to {CHANNELS_MAX}")


def _list(body: dict[str, Any], info: ListInfo) -> FileList:
    found = FileList(info, _items(DataFile, body["files"]), _items(Channel, body["channels"]))
    if (len(found.files), len(found.channels)) != (info.files, info.channels):
        raise ValueError(f"it has {len(found.files)} files and {len(found.channels)} channels, not as many as named")
    for entry in found.entries:
        if entry.key_groups.intersection(info.key_groups) != entry.key_groups:
            raise ValueError(f"it has an entry of {entry.key_groups}, outside of {info.key_groups}")
    if any(channel.step is not None or channel.keyless for channel in found.channels):
        raise ValueError("it has a channel that every subtask needs")
    subtasks = {channel.subtask for channel in found.channels}
    for file in found.files:
        if file.kind == "operator" or (file.kind == "in_flight" and file.subtask not in subtasks):
            raise ValueError(f"it has {file.path}, which every subtask needs, or not the channel of this file")
    return found


def _check_steps(manifest: Manifest) -> None:
    steps = set(manifest.step_names)
    if steps and (None in {channel.step for channel in manifest.channels} or "steps" not in manifest.required_features):
        raise ValueError("some channels have no step, or the feature is missing")
    for rule, infos in ((STATE_NAME, manifest.states), (OPERATOR_STATE_NAME, manifest.operator_states)):
        for info in infos:
            step, name = split_step(info.name) if steps else (None, info.name)
            if not rule.fits(name) or (steps and step not in steps):
                raise ValueError(f"there is no step for {info.name!r}, or it is no name of a state")
    for file in manifest.files if steps else ():
        # Outputs may wait for the sink when their step is no longer there.
        if file.state is None or (split_step(file.state)[0] not in steps and file.kind != "output"):
            raise ValueError(f"there is no step for {file.path}")


_Part = TypeVar("_Part", DataFile, Channel, StateInfo, OperatorStateInfo, ListInfo)


def _items(kind: type[_Part], items: list[dict[str, Any]]) -> tuple[_Part, ...]:
    return tuple(kind(**_with_ranges(_known(kind, item))) for item in items)


def _known(kind: type[Any], fields: dict[str, Any]) -> dict[str, Any]:
    return {field.name: fields[field.name] for field in dataclasses.fields(kind) if field.name in fields}


def _with_ranges(fields: dict[str, Any]) -> dict[str, Any]:
    names = {"codecs": tuple(fields["codecs"])} if "codecs" in fields else {}
    ranges = {name: _range(fields[name]) for name in ("key_groups", "file_key_groups") if name in fields}
    return fields | ranges | names


def _range(ends: dict[str, int]) -> KeyGroupRange:
    return KeyGroupRange(ends["start"], ends["end"])
