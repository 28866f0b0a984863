"""What a subtask gets from a snapshot: its range of the keyed state and its in-flight elements, read when touched."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, replace

from keygroups.codec import missing_codecs
from keygroups.descriptors import StateDescriptor
from keygroups.errors import MissingCodec
from keygroups.ranges import KeyGroupRange, range_of
from keygroups.state import LazyGroup
from keygroups.ttl import wall_time
from snapshots.errors import IncompatibleSnapshot
from snapshots.filesystem import Folder
from snapshots.in_flight import RestoredQueue, deal, in_flight_elements, merge_channels
from snapshots.manifest import DataFile, Manifest, StateInfo, manifest_name
from snapshots.operator_state import FileSlice, read_items, shares
from snapshots.parquet import ParquetReader, damage_named
from snapshots.reader import StateReader
from snapshots.schemas import widens
from snapshots.subtask import NO_KEY_GROUP, InFlightElement

RestoredGroup = LazyGroup | dict[Hashable, object]


@dataclass(frozen=True, slots=True)
class SubtaskRestore:
    """One subtask's share of a snapshot, at any parallelism. Picklable; nothing is read until asked for.

    Attributes
    ----------
    folder : Folder
        The operator's folder.
    manifest : Manifest
        The snapshot, with no more files and channels than the share needs.
    subtask_index, parallelism : int
        The subtask that is restored, and of how many.
    keyless : dict of int to (int, int)
        By channel, the run of in-flight elements without a key that falls to the subtask.
    operator_slices : dict of str to tuple of FileSlice
        By operator state, the items that fall to the subtask.
    """

    folder: Folder
    manifest: Manifest
    subtask_index: int
    parallelism: int
    keyless: dict[int, tuple[int, int]]
    operator_slices: dict[str, tuple[FileSlice, ...]]

    @classmethod
    def of(cls, folder: Folder, manifest: Manifest, subtask_index: int, parallelism: int) -> SubtaskRestore:
        """Take a subtask's share of a whole manifest."""
        owned = range_of(subtask_index, parallelism, manifest.max_parallelism)
        channels = manifest.channels
        is_same = [channel.key_groups for channel in channels] == [
            range_of(index, parallelism, manifest.max_parallelism) for index in range(parallelism)
        ]
        if is_same:
            count = channels[subtask_index].keyless
            keyless = {subtask_index: (0, count)} if count else {}
        else:
            keyless = deal([channel.keyless for channel in channels], parallelism, subtask_index)
        in_range = [file for file in manifest.files if file.key_groups.intersection(owned) is not None]
        queues = {file.subtask for file in in_range if file.kind == "in_flight"} | keyless.keys()
        fed = [channel for channel in channels if channel.subtask in queues or channel.key_groups.intersection(owned)]
        sources = {channel.subtask for channel in fed}
        files = [file for file in in_range if file.kind in {"keyed", "delta"}]
        files += [file for file in manifest.files_of("in_flight") if file.subtask in sources]
        share = replace(manifest, files=tuple(files), channels=tuple(fed))
        slices = shares(manifest, parallelism, subtask_index)
        return cls(folder, share, subtask_index, parallelism, keyless, slices)

    @property
    def key_groups(self) -> KeyGroupRange:
        """The key groups that the subtask owns."""
        return range_of(self.subtask_index, self.parallelism, self.manifest.max_parallelism)

    @property
    def snapshot_id(self) -> str:
        """The snapshot's id, which the changes of a restored backend are relative to."""
        return self.manifest.snapshot_id

    def check_fits(self, subtask_index: int, parallelism: int, max_parallelism: int, hash_name: str) -> None:
        """Raise `IncompatibleSnapshot` unless this share is made for such an operator."""
        for what, expected, found, next_step in (
            (
                "max parallelism",
                max_parallelism,
                self.manifest.max_parallelism,
                "open the operator with the snapshot's",
            ),
            ("hash", hash_name, self.manifest.hash, "open the operator with the snapshot's"),
            ("restored parallelism", parallelism, self.parallelism, "pass the operator's to Snapshot.restore"),
            ("restored subtask", subtask_index, self.subtask_index, "pass the operator's to Snapshot.restore"),
        ):
            if expected != found:
                raise IncompatibleSnapshot(what, expected, found, next_step)

    def states(
        self, descriptors: Iterable[StateDescriptor], now: int | None = None
    ) -> Mapping[str, Mapping[int, RestoredGroup]]:
        """Return the keyed state by name and key group; each group is read when it is loaded.

        A state that the snapshot does not have is empty. One whose type has widened since is cast as it is read. Of a
        state with a time to live, what has expired is left out, and what was stored without one gets a whole one.

        Parameters
        ----------
        descriptors : iterable of StateDescriptor
            As the states are declared now.
        now : int, optional
            The processing time (milliseconds since the epoch); the clock's unless given.

        Raises
        ------
        IncompatibleSnapshot
            The snapshot has a state that is not declared, or one of another kind or of a type that does not widen to
            the declared one.
        MissingCodec
            The snapshot has values of a user's own type whose codec is not registered here.
        """
        declared = {descriptor.name: descriptor for descriptor in descriptors}
        for info in self.manifest.states:
            descriptor = declared.get(info.name)
            if descriptor is None:
                raise IncompatibleSnapshot(
                    "a state", sorted(declared), info.name, "declare it in the function's states"
                )
            _check_state(descriptor, info)
            for name in missing_codecs(info.codecs):
                raise MissingCodec(name, f"state {info.name!r}")
        stored = {info.name for info in self.manifest.states}
        now = wall_time() if now is None else now
        return {name: self._groups(declared[name], now) if name in stored else {} for name in declared}

    def operator_state(self, name: str) -> list[object]:
        """Read the items of an operator state that fall to this subtask; none if the snapshot has no such state."""
        return read_items(self.folder, self.operator_slices.get(name, ()))

    def queue(self) -> RestoredQueue:
        """Read the in-flight elements that fall to this subtask, as one queue."""
        readers = [ParquetReader(self.folder, file) for file in self.manifest.files_of("in_flight")]
        owned = self.key_groups
        records = [
            element
            for reader in readers
            if reader.file.key_groups.intersection(owned) is not None
            for element in _read_elements(reader, owned.start, owned.end)
            if element.key_group in owned
        ]
        fed = {channel.subtask for channel in self.manifest.channels if channel.key_groups.intersection(owned)}
        fed |= self.keyless.keys() | {record.channel for record in records}
        for reader in readers:
            if reader.file.subtask in fed:
                records += self._without_key_group(reader)
        watermarks = {channel.subtask: channel.watermark for channel in self.manifest.channels}
        return merge_channels(records, {channel: watermarks[channel] for channel in fed})

    def _without_key_group(self, reader: ParquetReader) -> Iterable[InFlightElement]:
        """Return a channel's watermarks, and the run of its records without a key."""
        elements = _read_elements(reader, NO_KEY_GROUP, NO_KEY_GROUP)
        start, end = self.keyless.get(reader.file.subtask, (0, 0))
        yield from (element for element in elements if element.is_watermark)
        yield from [element for element in elements if not element.is_watermark][start:end]

    def _groups(self, descriptor: StateDescriptor, now: int) -> dict[int, LazyGroup]:
        files: tuple[DataFile, ...] = self.manifest.files_of("keyed", "delta", state=descriptor.name)
        path = self.folder.path(manifest_name(self.manifest.version))
        return {**StateReader(self.folder, files, path).groups(self.key_groups, descriptor, now)}


def _check_state(descriptor: StateDescriptor, info: StateInfo) -> None:
    if descriptor.kind != info.kind or not widens(info.arrow_type, descriptor.value_type):
        declared = (descriptor.kind, None if descriptor.value_type is None else str(descriptor.value_type))
        next_step = "declare it as it was written, or with a type that holds all values of that one"
        raise IncompatibleSnapshot(f"state {info.name!r}", declared, (info.kind, info.type), next_step)


def _read_elements(reader: ParquetReader, first: int, last: int) -> list[InFlightElement]:
    """Read the elements of some key groups, ordered by channel and place in it."""
    numbers = reader.row_groups(first, last)
    if not numbers:
        return []
    table = reader.read(numbers)
    with damage_named(reader.path, reader.file.key_groups):
        elements = [element for element in in_flight_elements(table) if first <= element.key_group <= last]
    return sorted(elements, key=lambda element: element.sequence)
