"""A subtask's share of a snapshot: its range of the keyed state and its in-flight elements, read on demand."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from keygroups.codec import missing_codecs
from keygroups.descriptors import StateDescriptor
from keygroups.errors import MissingCodec
from keygroups.events import Value, observed
from keygroups.ranges import KeyGroupRange, range_of
from keygroups.representation import representation
from keygroups.state import KeyGroupContent
from keygroups.ttl import wall_time
from snapshots.errors import IncompatibleSnapshot
from snapshots.filesystem import Folder
from snapshots.format.in_flight_columns import in_flight_elements
from snapshots.format.in_flight_elements import RestoredQueue, deal, merge_channels
from snapshots.format.manifest import DataFile, Manifest, manifest_name
from snapshots.format.operator_state import FileSlice, own_runs, read_items, shares
from snapshots.format.parquet import ParquetReader, damage_named
from snapshots.format.subtask import NO_KEY_GROUP, InFlightElement
from snapshots.observing import log
from snapshots.restore.declared import check_states
from snapshots.restore.reader import ArrowGroup, StateReader


@dataclass(frozen=True, slots=True)
class SubtaskRestore:
    """One subtask's share of a snapshot, at any parallelism. Picklable; state is read on demand.

    Attributes
    ----------
    folder : Folder
        The operator's folder.
    manifest : Manifest
        The manifest of the snapshot, reduced to the files and channels of the share.
    subtask_index, parallelism : int
        The subtask that is restored, and the number of subtasks.
    keyless : dict of int to (int, int)
        For each channel, the run of in-flight elements without a key that the subtask gets.
    operator_slices : dict of str to tuple of FileSlice
        For each operator state, the items that the subtask gets.
    own_items : dict of str to (int, int)
        For each union state, the run of these items that the subtask keeps; it only gets to see the others.
    """

    folder: Folder
    manifest: Manifest
    subtask_index: int
    parallelism: int
    keyless: dict[int, tuple[int, int]]
    operator_slices: dict[str, tuple[FileSlice, ...]]
    own_items: dict[str, tuple[int, int]]

    @classmethod
    def of(cls, folder: Folder, manifest: Manifest, subtask_index: int, parallelism: int) -> SubtaskRestore:
        """Compute a subtask's share from a manifest that has what the subtask needs."""
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
        elements = manifest.files_of("in_flight")
        # Elements without a key and watermarks are in the file of a channel with the lowest key groups.
        first = {file.subtask: file for file in sorted(elements, key=lambda file: -file.key_groups.start)}
        needed = {file.path for file in (*in_range, *first.values())}
        files += [file for file in elements if file.subtask in sources and file.path in needed]
        share = replace(manifest, files=tuple(files), channels=tuple(fed), file_lists=())
        slices = shares(manifest, parallelism, subtask_index)
        own = own_runs(manifest, parallelism, subtask_index)
        return cls(folder, share, subtask_index, parallelism, keyless, slices, own)

    def __repr__(self) -> str:
        facts = {"subtask_index": self.subtask_index, "parallelism": self.parallelism}
        return representation(self, facts | {"version": self.manifest.version, "uri": self.folder.uri})

    @property
    def key_groups(self) -> KeyGroupRange:
        """The key groups that the subtask owns."""
        return range_of(self.subtask_index, self.parallelism, self.manifest.max_parallelism)

    @property
    def snapshot_id(self) -> str:
        """The id of the snapshot, to which the changes of a restored backend are relative."""
        return self.manifest.snapshot_id

    def check_fits(self, subtask_index: int, parallelism: int, max_parallelism: int, hash_name: str) -> None:
        """Raise `IncompatibleSnapshot` unless this share was made for an operator with these settings."""
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
    ) -> Mapping[str, Mapping[int, KeyGroupContent]]:
        """Return the keyed state by name and key group; each key group is read when it is loaded.

        A state that is not in the snapshot is empty. If the type of a state has widened since, values are cast when
        they are read. Expired values are left out. A value that was stored without a time to live gets the full time.

        Parameters
        ----------
        descriptors : iterable of StateDescriptor
            The current declarations of the states.
        now : int, optional
            The processing time (milliseconds since the epoch); by default the system's.

        Raises
        ------
        IncompatibleSnapshot
            The snapshot has a state that is not declared, or that is declared with another kind, or with a type to
            which the stored type does not widen.
        MissingCodec
            The snapshot has values of a user's type whose codec is not registered in this process.
        """
        return self.stored_states(descriptors, now)

    def stored_states(
        self, descriptors: Iterable[StateDescriptor], now: int | None = None
    ) -> dict[str, dict[int, ArrowGroup]]:
        """Return the same as `states`, with the types of the stored key groups."""
        declared = {descriptor.name: descriptor for descriptor in descriptors}
        check_states(self.manifest, declared.values(), self.folder.uri)
        for info in self.manifest.states:
            for name in missing_codecs(info.codecs):
                raise MissingCodec(name, f"state {info.name!r}")
        stored = {info.name for info in self.manifest.states}
        now = wall_time() if now is None else now
        return {name: self._groups(declared[name], now) if name in stored else {} for name in declared}

    def operator_state(self, name: str) -> list[object]:
        """Read the items of an operator state that this subtask gets; none if the snapshot has no such state."""
        return read_items(self.folder, self.operator_slices.get(name, ()))

    def queue(self) -> RestoredQueue:
        """Read this subtask's in-flight elements as one queue; keyed state is not read."""
        place: dict[str, Value] = {"operator_id": self.manifest.operator_id, "version": self.manifest.version}
        with observed(log, logging.DEBUG, "restore", **place, subtask_index=self.subtask_index) as found:
            queue = self._read_queue()
            found |= {"parallelism": self.parallelism, "in_flight": len(queue.elements)}
        return queue

    def _read_queue(self) -> RestoredQueue:
        readers = [ParquetReader(self.folder, file) for file in self.manifest.files_of("in_flight")]
        owned = self.key_groups
        records = [
            element
            for reader in readers
            if reader.file.key_groups.intersection(owned) is not None
            for element in _read_elements(reader, owned.start, owned.end)
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

    def _groups(self, descriptor: StateDescriptor, now: int) -> dict[int, ArrowGroup]:
        files: tuple[DataFile, ...] = self.manifest.files_of("keyed", "delta", state=descriptor.name)
        path = self.folder.path(manifest_name(self.manifest.version))
        return StateReader(self.folder, files, path).groups(self.key_groups, descriptor, now)


def _read_elements(reader: ParquetReader, first: int, last: int) -> list[InFlightElement]:
    """Read the elements of some key groups, ordered by channel and position."""
    numbers = reader.row_groups(first, last)
    if not numbers:
        return []
    table = reader.read(numbers)
    with damage_named(reader.path, reader.file.key_groups):
        elements = [element for element in in_flight_elements(table) if first <= element.key_group <= last]
    return sorted(elements, key=lambda element: element.sequence)
