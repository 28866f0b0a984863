"""Streams the current rows of one state in bounded pieces."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import pyarrow as pa

from keygroups.errors import ConfigError
from keygroups.ranges import KeyGroupRange
from snapshots.filesystem import Folder
from snapshots.format.columns import common_key_type, index_columns, keyed_schema
from snapshots.format.manifest import Manifest, StateInfo, manifest_name
from snapshots.format.schemas import without_field_ids
from snapshots.restore.reader import StateReader, in_schema, merge, merged_pieces, stored_key_type


@dataclass(frozen=True)
class StateStream:
    """Reads one state from its files in the order of key groups. For use by one thread.

    Memory holds `BATCH_BYTES` of rows, or one row group of each layer; where there are deltas, one key group, or
    several small ones.

    Attributes
    ----------
    info : StateInfo
        The state.
    schema : pyarrow.Schema
        The schema of every piece; the keys have the same type in all of them.
    """

    info: StateInfo
    schema: pa.Schema
    _reader: StateReader = field(repr=False)

    @classmethod
    def of(cls, folder: Folder, manifest: Manifest, state_name: str) -> StateStream:
        """Open a state for streaming; this reads the footers of its files.

        Raises
        ------
        ConfigError
            There is no such state.
        """
        info = manifest.state(state_name)
        if info is None:
            names = [state.name for state in manifest.states]
            raise ConfigError("state_name", state_name, f"the snapshot has the states {names}")
        files = manifest.files_of("keyed", "delta", state=state_name)
        reader = StateReader(folder, files, folder.path(manifest_name(manifest.version)))
        layers = {layer for _, found in reader.spans(all_key_groups(manifest)) for layer in found if layer.file.rows}
        types = [{stored_key_type(layer, name) for layer in layers} for name in index_columns(info.kind)]
        schema = keyed_schema(info, *map(common_key_type, types))
        return cls(info, pa.schema([without_field_ids(column) for column in schema]), reader)

    def tables(self, wanted: KeyGroupRange) -> Iterator[pa.Table]:
        """Yield the rows of a range in bounded pieces."""
        for span, layers in self._reader.spans(wanted):
            pieces = layers[0].pieces(span) if len(layers) == 1 else merged_pieces(span, layers)
            for piece in pieces:
                if piece.num_rows:
                    yield in_schema(piece, self.schema)

    def groups(self, wanted: KeyGroupRange) -> Iterator[pa.Table]:
        """Yield the rows of a range with one table per key group; key groups without rows are left out."""
        for span, layers in self._reader.spans(wanted):
            for key_group in span:
                rows = merge([layer.take(key_group) for layer in layers])
                if rows.num_rows:
                    yield in_schema(rows, self.schema)

    def batches(self, wanted: KeyGroupRange) -> pa.RecordBatchReader:
        """Return the rows of a range as a stream of record batches."""
        found = (batch for table in self.tables(wanted) for batch in table.to_batches())
        return pa.RecordBatchReader.from_batches(self.schema, found)


def all_key_groups(manifest: Manifest) -> KeyGroupRange:
    """Return the range of all key groups of a snapshot."""
    return KeyGroupRange(0, manifest.max_parallelism - 1)
