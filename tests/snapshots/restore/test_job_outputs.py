"""The outputs of a job: they stay in the newest version until they are marked as delivered, whatever is committed."""

from __future__ import annotations

import pickle
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from snapshots import IncompleteSnapshot, Snapshot, SnapshotCorrupted, SnapshotStore, SubtaskSnapshot
from snapshots.format import delivered, parquet
from snapshots.format.delivered import Delivered, mark_delivered
from tests.snapshot_kit import new_store, parts
from tests.snapshots.aged_operator import age
from tests.snapshots.job_kit import source_parts


def step_parts() -> dict[str, list[SubtaskSnapshot]]:
    return {"source": source_parts(), "enrich": parts({"count": {"a": 1}})}


def write(store: SnapshotStore, *outputs: list[int]) -> Snapshot:
    """Commit a version whose last step has these outputs, one list for each subtask."""
    pending = store.begin()
    handles = [pending.write_subtask(one, step="source") for one in source_parts()]
    for one, values in zip(parts({"count": {"a": 1}}), outputs or ([], []), strict=True):
        handles.append(pending.write_subtask(one, pa.table({"n": pa.array(values, pa.int64())}), step="enrich"))
    return pending.commit(handles)


def waiting(store: SnapshotStore) -> dict[int, list[int]]:
    """Return the outputs by version that a job would deliver now."""
    return {one.version: one.to_arrow().column("n").to_pylist() for one in store.load().undelivered()}


def test_outputs_wait_in_every_version_until_they_are_delivered() -> None:
    store = new_store()
    write(store, [1, 2], [3])
    write(store)
    third = write(store, [], [4])
    assert waiting(store) == {1: [1, 2, 3], 3: [4]}
    assert [(one.rows, one.bytes > 0) for one in third.outputs()] == [(3, True), (1, True)]

    third.outputs()[0].mark_delivered()
    assert waiting(store) == {3: [4]}
    assert [one.version for one in third.outputs()] == [1, 3]
    assert [one.version for one in write(store, [5], []).outputs()] == [3, 4]
    store.load().undelivered()[-1].mark_delivered()
    assert waiting(store) == {}
    assert write(store).outputs() == ()


@given(
    commits=st.lists(
        st.tuples(st.lists(st.integers(0, 9), max_size=2), st.sampled_from(["", "next", "all", "lost"])), max_size=8
    )
)
def test_every_output_is_delivered_once_in_order_whenever_the_job_crashes(
    commits: list[tuple[list[int], str]],
) -> None:
    store, sink, expected = new_store(), dict[int, list[int]](), dict[int, list[int]]()
    for values, delivery in commits:
        version = write(store, values, []).version
        if values:
            expected[version] = values
        found = store.load().undelivered()
        for outputs in found[:1] if delivery == "next" else found if delivery in ("all", "lost") else ():
            sink[outputs.version] = outputs.to_arrow().column("n").to_pylist()
            if delivery != "lost":
                outputs.mark_delivered()
    for outputs in store.load().undelivered() if commits else ():
        sink[outputs.version] = outputs.to_arrow().column("n").to_pylist()
    assert sink == expected


@pytest.mark.parametrize("change", ["claim", "repartition", "rewrite", "compact", "edit", "copy"])
def test_no_other_version_forgets_what_waits(change: str) -> None:
    store = new_store()
    write(store, [1], [2])
    write(store, [3], [])
    if change == "claim":
        store.claim()
    elif change == "repartition":
        store.repartition(3)
    elif change == "rewrite":
        store.repartition(2, max_parallelism=64, hash="flink", rewrite=True)
    elif change == "compact":
        store.compact()
    elif change == "edit":
        store.edit().drop("enrich.count").commit()
    else:
        store.load().outputs()[0].mark_delivered()
        other = new_store()
        store.copy_to(other)
        assert waiting(other) == {2: [3]}
        return
    assert waiting(store) == {1: [1, 2], 2: [3]}


def test_retention_keeps_what_waits_and_removes_what_was_delivered(tmp_path: Path) -> None:
    store = SnapshotStore(tmp_path, "job")
    for number in range(5):
        write(store, [number], [])
    store.load().outputs()[1].mark_delivered()
    write(store)
    age(store)
    report = store.collect_garbage(keep_last=1, dry_run=False)
    assert sum("/output-" in name for name in report.files) == 2
    assert waiting(store) == {3: [2], 4: [3], 5: [4]}
    assert store.verify().ok


def test_the_mark_of_a_removed_history_counts_for_nothing() -> None:
    store, other = new_store(), new_store()
    write(store, [1], [])
    write(other, [1], [])
    mark_delivered(store.folder, delivered.delivery_of(other.load().outputs()[0].files))
    assert waiting(store) == {1: [1]}
    mark_delivered(store.folder, Delivered(10**6, "any"))
    assert waiting(store) == {1: [1]}


def test_outputs_are_streamed_in_bounded_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "_ROW_GROUP_BYTES", 80)
    monkeypatch.setattr(parquet, "BATCH_BYTES", 1)
    store = new_store()
    (outputs,) = write(store, list(range(50)), list(range(50, 60))).outputs()
    batches = list(pickle.loads(pickle.dumps(outputs)).batches())
    assert max(batch.num_rows for batch in batches) <= 10
    assert [n for batch in batches for n in batch.column("n").to_pylist()] == list(range(60))


def test_outputs_that_are_damaged_are_named(tmp_path: Path) -> None:
    store = SnapshotStore(tmp_path, "job")
    (outputs,) = write(store, [1], []).outputs()
    path = Path(tmp_path, "job", outputs.files[0].path)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(SnapshotCorrupted, match=r"output-0\.parquet"):
        outputs.to_arrow()


def test_one_step_has_outputs() -> None:
    store = new_store()
    pending, table = store.begin(), pa.table({"n": [1]})
    handles = [pending.write_subtask(one, table, step=step) for step, cuts in step_parts().items() for one in cuts]
    with pytest.raises(IncompleteSnapshot, match="one step of a job has outputs, not several: source, enrich"):
        pending.commit(handles)


def test_outputs_wait_although_their_step_has_gone() -> None:
    store = new_store()
    pending = store.begin()
    handles = [pending.write_subtask(one, pa.table({"n": [7]}), step="last") for one in source_parts(items=0)]
    pending.commit(handles)
    assert write(store, [8], []).step_names == ("source", "enrich")
    assert waiting(store) == {1: [7, 7], 2: [8]}


def test_an_operator_keeps_only_its_own_outputs() -> None:
    store = new_store()
    for number in range(2):
        pending = store.begin()
        pending.commit([pending.write_subtask(one, pa.table({"n": [number]})) for one in parts({})])
    assert [one.version for one in store.load().outputs()] == [2]
