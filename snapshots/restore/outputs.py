"""The stored outputs of a version, read again where the sink may not have had them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from keygroups.representation import representation
from snapshots.filesystem import Folder
from snapshots.format.delivered import Delivered, delivery_of, mark_delivered
from snapshots.format.manifest import DataFile
from snapshots.format.parquet import ParquetReader


@dataclass(frozen=True, slots=True)
class StoredOutputs:
    """The outputs that one version has added. Picklable; any thread may call it.

    Attributes
    ----------
    folder : Folder
        The operator's folder.
    files : tuple of DataFile
        The files, ordered by subtask; there is at least one.
    """

    folder: Folder
    files: tuple[DataFile, ...]

    def __repr__(self) -> str:
        return representation(self, {"uri": self.folder.uri, "files": len(self.files)})

    @property
    def version(self) -> int:
        """The version that added them: the epoch under which a job gives them to its sink."""
        return self.files[0].version

    @property
    def rows(self) -> int:
        """The number of outputs."""
        return sum(file.rows for file in self.files)

    @property
    def bytes(self) -> int:
        """The bytes of the files."""
        return sum(file.bytes for file in self.files)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the outputs in their stored order, subtask by subtask, in bounded memory.

        Raises
        ------
        SnapshotCorrupted
            A file is damaged.
        """
        for file in self.files:
            reader = ParquetReader(self.folder, file)
            for numbers in reader.batches(list(range(reader.metadata().num_row_groups))):
                yield from reader.read(numbers).to_batches()

    def to_arrow(self) -> pa.Table:
        """Read all outputs as one table.

        Raises
        ------
        SnapshotCorrupted
            A file is damaged.
        """
        return pa.Table.from_batches(list(self.batches()))

    @property
    def identity(self) -> Delivered:
        """What tells them from the outputs of a version of the same number in another history."""
        return delivery_of(self.files)

    def mark_delivered(self) -> None:
        """Note that the sink has had all outputs up to this version; the next commit leaves them out.

        The mark is kept beside the versions. If it is lost, the outputs are delivered again.
        """
        mark_delivered(self.folder, self.identity)
