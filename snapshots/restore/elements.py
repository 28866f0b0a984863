"""The in-flight elements of a snapshot as tables; those of a job say which step they are in."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from snapshots.filesystem import Folder
from snapshots.format.in_flight_elements import IN_FLIGHT_SCHEMA
from snapshots.format.manifest import Manifest
from snapshots.format.parquet import ParquetReader
from snapshots.format.steps import step_of

STEP = "step"
"""The last column of the elements of a job; those of a plain operator do not have it."""

_STEP = pa.field(STEP, pa.string(), False)


def elements_schema(manifest: Manifest) -> pa.Schema:
    """Return the columns of the elements of a snapshot."""
    return IN_FLIGHT_SCHEMA.append(_STEP) if manifest.step_names else IN_FLIGHT_SCHEMA


def element_tables(folder: Folder, manifest: Manifest) -> Iterator[pa.Table]:
    """Yield the elements of each file, one file in memory at a time."""
    for file in manifest.files_of("in_flight"):
        yield with_step(ParquetReader(folder, file).read_all(), step_of(manifest, file))


def with_step(elements: pa.Table, step: str | None) -> pa.Table:
    """Return elements with the column `step`, if they are of a job."""
    if step is None:
        return elements
    return elements.append_column(_STEP, pa.repeat(pa.scalar(step, pa.string()), elements.num_rows))
