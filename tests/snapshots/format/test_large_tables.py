"""Tables with columns of more than the 2 GiB that one array has: queues of images, states of documents."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from keygroups.values import ColumnEncoder, TooLarge
from snapshots import SnapshotStore
from snapshots.format import compute
from tests.snapshot_kit import new_store
from tests.snapshots.upkeep.varied_operator import content, elements, operator

VALUES_MAX = 3
"""How many values an array holds here."""


@pytest.fixture
def small_arrays(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Let arrays be too large with a few values in place of 2 GiB; returns how many values were too many."""
    whole, refused = ColumnEncoder.array, list[int]()

    def array(encoder: ColumnEncoder, values: Sequence[Any]) -> pa.Array:
        if len(values) > VALUES_MAX:
            refused.append(len(values))
            raise TooLarge(0, "", "too large")
        return whole(encoder, values)

    monkeypatch.setattr(ColumnEncoder, "array", array)
    monkeypatch.setattr(compute, "ARRAY_BYTES_MAX", 0)
    return refused


@given(st.lists(st.integers(0, 9)), st.integers(1, 10))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@pytest.mark.usefixtures("small_arrays")
def test_rows_are_taken_as_from_a_small_table(places: list[int], chunk: int) -> None:
    whole = pa.table({"n": range(10), "text": [str(number) for number in range(10)]})
    table = pa.concat_tables([whole.slice(start, chunk) for start in range(0, 10, chunk)])

    assert compute.take(table, np.array(places, np.int64)).equals(whole.take(pa.array(places, pa.int64())))


@pytest.mark.thorough
def test_rows_are_taken_from_columns_with_more_than_an_array_has() -> None:
    image = bytes(4 * 2**20)
    table = pa.table({"n": range(600), "image": pa.chunked_array([pa.array([image] * 300, pa.binary())] * 2)})
    backwards = np.arange(600)[::-1]
    with pytest.raises(pa.ArrowInvalid, match="offset overflow"):  # once Arrow can, `take` has nothing to add
        table.take(pa.array(backwards))

    taken = compute.take(table, backwards)

    assert taken.column("n").to_pylist() == backwards.tolist()
    assert [len(one.as_py()) for one in taken.column("image")] == [len(image)] * 600


def written() -> tuple[SnapshotStore, Any]:
    """Return a store with a base and a delta, and what the newest snapshot has."""
    store, made = new_store(), operator(5)
    store.write(made.cut())
    made.change(20)
    snapshot = store.write(made.cut())
    assert snapshot.manifest.files_of("delta")
    return store, (content(snapshot), elements(snapshot))


def test_a_snapshot_holds_what_is_too_large_for_one_array(request: pytest.FixtureRequest) -> None:
    _, expected = written()
    too_many = request.getfixturevalue("small_arrays")

    store, found = written()

    assert too_many, "no array was too large"
    assert found == expected
    after = store.repartition(3, max_parallelism=1000, rewrite=True)
    assert (content(after), elements(after)) == expected
