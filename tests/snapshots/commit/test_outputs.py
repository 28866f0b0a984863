"""Outputs that wait for their delivery: their schema is kept with them, whatever is committed before they leave."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from snapshots import IncompleteSnapshot, Snapshot, SnapshotStore
from snapshots.format.manifest import decode_schema
from tests.snapshot_kit import new_store, parts

OUTPUTS = pa.table({"id": pa.array([1, 2]), "at": pa.array([0, None], pa.timestamp("us", "UTC"))})


def written(store: SnapshotStore, *outputs: pa.Table | None) -> Snapshot:
    pending = store.begin()
    handles = [pending.write_subtask(*one) for one in zip(parts({"count": {"a": 1}}), outputs, strict=True)]
    return pending.commit(handles)


def schema_of(snapshot: Snapshot | None) -> pa.Schema:
    assert snapshot is not None
    assert snapshot.manifest.output_schema is not None
    return decode_schema(snapshot.manifest.output_schema)


@pytest.mark.parametrize("outputs", [OUTPUTS, OUTPUTS.slice(2)])
def test_the_schema_of_outputs_stays_with_them(outputs: pa.Table) -> None:
    store = new_store()
    written(store, outputs, OUTPUTS.slice(2))
    options: list[dict[str, Any]] = [{"parallelism": 3}, {"parallelism": 2, "max_parallelism": 64, "rewrite": True}]
    for change in (store.claim, *(lambda one=one: store.repartition(**one) for one in options), store.compact):
        change()
        assert schema_of(store.latest()) == OUTPUTS.schema
        assert len(store.latest().manifest.files_of("output")) == (outputs.num_rows > 0)  # type: ignore[union-attr]

    assert schema_of(store.load(1)) == OUTPUTS.schema


def test_a_snapshot_without_outputs_has_no_schema_of_any() -> None:
    store = new_store()
    written(store, OUTPUTS, OUTPUTS)
    assert written(store, None, None).manifest.output_schema is None


@pytest.mark.parametrize("other", [OUTPUTS.drop_columns("at"), None])
def test_outputs_of_two_schemas_are_refused(other: pa.Table | None) -> None:
    store = new_store()
    with pytest.raises(IncompleteSnapshot, match="output_schema"):
        written(store, OUTPUTS, other)
    assert store.latest() is None
