"""What a subtask gets from a snapshot: its range of the keyed state and its in-flight elements, read when touched."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from keygroups.descriptors import ValueState
from keygroups.ranges import KeyGroupRange, range_of
from keygroups.state import LazyGroup
from snapshots.columns import KeyedReader
from snapshots.errors import IncompatibleSnapshot
from snapshots.filesystem import Folder
from snapshots.in_flight import RestoredQueue, deal, in_flight_elements, merge_channels
from snapshots.manifest import Manifest
from snapshots.parquet import ParquetReader, damage_named
from snapshots.subtask import NO_KEY_GROUP, InFlightElement


@dataclass(frozen=True, slots=True)
class SubtaskRestore:
    """One subtask's share of a snapshot, at any parallelism. Picklable; nothing is read until asked for.

    Attributes
    ----------
    folder : Folder
        The operator's folder.
    manifest : Manifest
        The snapshot.
    subtask_index, parallelism : int
        The subtask that is restored, and of how many.
    """

    folder: Folder
    manifest: Manifest
    subtask_index: int
    parallelism: int

    @property
    def key_groups(self) -> KeyGroupRange:
        """The key groups that the subtask owns."""
        return range_of(self.subtask_index, self.parallelism, self.manifest.max_parallelism)

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

    def states(self, descriptors: Iterable[ValueState]) -> dict[str, dict[int, LazyGroup]]:
        """Return the keyed state by name and key group; each group is read when it is loaded.

        Raises
        ------
        IncompatibleSnapshot
            The snapshot has a state that is not declared, or one of another kind or type.
        """
        declared = {descriptor.name: descriptor for descriptor in descriptors}
        for info in self.manifest.states:
            descriptor = declared.get(info.name)
            if descriptor is None:
                raise IncompatibleSnapshot(
                    "a state", sorted(declared), info.name, "declare it in the function's states"
                )
            wanted = (descriptor.kind, None if descriptor.type is None else str(descriptor.type))
            if wanted != (info.kind, info.type):
                found = (info.kind, info.type)
                raise IncompatibleSnapshot(f"state {info.name!r}", wanted, found, "declare it as it was written")
        return {name: self._groups(name) for name in declared}

    def queue(self) -> RestoredQueue:
        """Read the in-flight elements that fall to this subtask, as one queue."""
        records: list[InFlightElement] = []
        keyless: list[InFlightElement] = []
        watermarks: list[InFlightElement] = []
        for file in self.manifest.files_of("in_flight"):
            for element in self._read_elements(ParquetReader(self.folder, file)):
                if element.is_watermark:
                    watermarks.append(element)
                elif element.key_group == NO_KEY_GROUP:
                    keyless.append(element)
                elif element.key_group in self.key_groups:
                    records.append(element)
        records += self._share(keyless)
        channels = {*self._overlapping_channels(), *(record.channel for record in records)}
        fed = records + [watermark for watermark in watermarks if watermark.channel in channels]
        return merge_channels(fed, {channel: self.manifest.watermarks[channel] for channel in channels})

    def _groups(self, state: str) -> dict[int, LazyGroup]:
        groups: dict[int, LazyGroup] = {}
        for file in self.manifest.files_of("keyed", state):
            if file.key_groups.intersection(self.key_groups) is not None:
                groups.update(KeyedReader(ParquetReader(self.folder, file)).groups(self.key_groups))
        return groups

    def _overlapping_channels(self) -> Iterable[int]:
        channels = len(self.manifest.watermarks)
        for channel in range(channels):
            written = range_of(channel, channels, self.manifest.max_parallelism)
            if written.intersection(self.key_groups) is not None:
                yield channel

    def _read_elements(self, reader: ParquetReader) -> list[InFlightElement]:
        """Read the row groups of the owned range and those of elements without a key group."""
        owned = self.key_groups
        wanted = {*reader.row_groups(NO_KEY_GROUP, NO_KEY_GROUP), *reader.row_groups(owned.start, owned.end)}
        table = reader.read(sorted(wanted))
        with damage_named(reader.path, reader.file.key_groups):
            return in_flight_elements(table)

    def _share(self, keyless: list[InFlightElement]) -> list[InFlightElement]:
        if self.parallelism == len(self.manifest.watermarks):
            return [element for element in keyless if element.channel == self.subtask_index]
        return deal(keyless, self.parallelism, self.subtask_index)
