"""The rows of one state, as they hold, a bounded piece at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import pyarrow as pa

from keygroups.errors import ConfigError
from keygroups.ranges import KeyGroupRange
from snapshots.columns import common_key_type, index_columns, keyed_schema
from snapshots.filesystem import Folder
from snapshots.manifest import Manifest, StateInfo, manifest_name
from snapshots.parquet import BATCH_BYTES
from snapshots.reader import KeyedReader, StateReader, in_schema, merge, stored_key_type
from snapshots.schemas import without_field_ids


@dataclass(frozen=True)
class StateStream:
    """Reads one state from its files, in the order of key groups. One thread uses it.

    In memory are `BATCH_BYTES` of rows, or a row group of each layer, or, where there are deltas, a key group.

    Attributes
    ----------
    info : StateInfo
        The state.
    schema : pyarrow.Schema
        Of every piece: the keys have one type in all of them.
    """

    info: StateInfo
    schema: pa.Schema
    _reader: StateReader = field(repr=False)

    @classmethod
    def of(cls, folder: Folder, manifest: Manifest, state_name: str) -> StateStream:
        """Look at the footers of a state's files.

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
        """Return the rows of a range."""
        for span, layers in self._reader.spans(wanted):
            pieces = layers[0].pieces(span) if len(layers) == 1 else _merged(span, layers)
            for piece in pieces:
                if piece.num_rows:
                    yield in_schema(piece, self.schema)

    def groups(self, wanted: KeyGroupRange) -> Iterator[pa.Table]:
        """Return the rows of a range, those of each key group as one table; none without rows."""
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


def _merged(span: KeyGroupRange, layers: list[KeyedReader]) -> Iterator[pa.Table]:
    for key_group in span:
        rows = merge([layer.take(key_group) for layer in layers])
        for start in range(0, rows.num_rows, step := max(rows.num_rows * BATCH_BYTES // max(rows.nbytes, 1), 1)):
            yield rows.slice(start, step)
