"""What is done to snapshots is done to jobs: rewrites, compaction, edits and copies are of all steps."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keygroups import ConfigError, ListState, ValueState
from snapshots import Snapshot, SnapshotStore, WrongStep
from tests.examples import scaled
from tests.snapshot_kit import COUNT, content_of, new_store, parts, record
from tests.snapshots.job_kit import alone, new_stores, source_parts, write_both
from tests.snapshots.upkeep.varied_operator import Operator, content, elements, watermark

STEPS = ("enrich", "score")


@settings(max_examples=scaled(24))
@given(
    seed=st.integers(0, 2**32),
    parallelism=st.integers(1, 4),
    target=st.tuples(st.integers(1, 5), st.sampled_from([7, 64, 100]), st.sampled_from(["xxhash64", "flink"])),
)
def test_a_rewrite_moves_every_step(seed: int, parallelism: int, target: tuple[int, int, str]) -> None:
    draw = random.Random(seed)
    job, stores = new_store(), new_stores(*STEPS)
    operators = {step: Operator(draw, parallelism, 64) for step in STEPS}
    for operator in operators.values():
        operator.change(draw.randrange(60))
        operator.fill(draw.randrange(20))
    before = write_both(job, stores, {step: operator.cut() for step, operator in operators.items()})
    new_parallelism, max_parallelism, hash_ = target
    after = job.repartition(new_parallelism, max_parallelism=max_parallelism, hash=hash_, rewrite=True)

    assert (after.max_parallelism, after.manifest.hash, after.step_names) == (max_parallelism, hash_, STEPS)
    assert after.in_flight_count == before.in_flight_count
    assert job.verify().ok
    for step in STEPS:
        assert content(alone(after, step)) == content(alone(before, step))
        assert elements(alone(after, step)) == elements(alone(before, step))
        assert watermark(alone(after, step)) == watermark(alone(before, step))


def filled(store: SnapshotStore) -> Snapshot:
    elements = [record("a", 0, element_id="e")]
    return store.write(
        {
            "source": source_parts(),
            "enrich": parts({"count": {"a": 1, "b": 2}}, in_flight=elements),
            "score": parts({"count": {"c": 3}}),
        }
    )


def counts(snapshot: Snapshot, step: str) -> dict[Any, object]:
    return content_of(alone(snapshot, step))["count"]


class TestEdit:
    def test_states_are_edited_by_their_whole_name(self) -> None:
        store = new_store()
        filled(store)

        def doubled(rows: pa.Table) -> pa.Table:
            return rows.set_column(rows.schema.get_field_index("value"), "value", pc.multiply(rows["value"], 2))

        edited = (
            store.edit()
            .transform("enrich.count", doubled)
            .map_items(COUNT, lambda key, value: [(key, value + 1)], step="score")
            .drop("score.profile")
            .commit()
        )
        assert counts(edited, "enrich") == {"a": 2, "b": 4}
        assert edited.to_arrow("score.count").column("value").to_pylist() == [4]
        assert edited.state_names == ("enrich.count", "enrich.profile", "score.count")
        assert "steps" in edited.manifest.required_features
        assert edited.restore(0, step="source").operator_state("positions") == [(0, 0), (2, 20), (4, 40)]
        assert edited.in_flight_count == 1

    def test_a_state_is_put_into_its_step(self) -> None:
        store = new_store()
        filled(store)
        edited = store.edit().put(COUNT, [("z", 26)], step="enrich").put(ListState("new"), [("z", [1])], step="score")
        snapshot = edited.commit()
        assert counts(snapshot, "enrich") == {"z": 26}
        assert snapshot.state_names[-1] == "score.new"
        assert store.verify().ok

    def test_a_state_is_renamed_within_and_across_steps(self) -> None:
        store = new_store()
        filled(store)
        edited = store.edit().rename("enrich.count", "enrich.seen").rename("score.count", "source.count").commit()
        assert edited.state_names == ("enrich.seen", "enrich.profile", "source.count", "score.profile")
        assert edited.to_arrow("source.count").num_rows == 1

    @pytest.mark.parametrize(
        ("edit", "message"),
        [
            (lambda editor: editor.put(COUNT, []), "name one of its steps"),
            (lambda editor: editor.put(COUNT, [], step="other"), "step='other'"),
            (lambda editor: editor.map_items(ValueState("count"), lambda *_: [], step=None), "name one of its steps"),
            (lambda editor: editor.rename("enrich.count", "count"), "step='count'"),
            (lambda editor: editor.rename("enrich.count", "other.count"), "step='other'"),
        ],
        ids=["put", "put elsewhere", "map", "rename to a plain name", "rename to another step"],
    )
    def test_a_state_must_be_in_a_step(self, edit: Any, message: str) -> None:
        store = new_store()
        filled(store)
        with pytest.raises(WrongStep, match=message):
            edit(store.edit())

    def test_an_operator_has_no_step_to_edit(self) -> None:
        store = new_store()
        store.write(parts({"count": {"a": 1}}))
        with pytest.raises(WrongStep):
            store.edit().put(COUNT, [], step="enrich")
        with pytest.raises(ConfigError, match="new="):
            store.edit().rename("count", "enrich.count")


def test_compaction_folds_every_step() -> None:
    store = new_store()
    draw = random.Random(4711)
    operators = {step: Operator(draw, 2, 64) for step in STEPS}
    for operator in operators.values():
        operator.change(400)
    store.write({step: operator.cut() for step, operator in operators.items()})
    for operator in operators.values():
        operator.change(3)
    before = store.write({step: operator.cut() for step, operator in operators.items()})
    assert {file.state.partition(".")[0] for file in before.manifest.files_of("delta") if file.state} == set(STEPS)
    after = store.compact()
    assert not after.manifest.files_of("delta")
    assert after.step_names == STEPS
    for step in STEPS:
        assert content(alone(after, step)) == content(alone(before, step))


def test_a_copy_is_a_job() -> None:
    store, other = new_store(), new_store()
    filled(store)
    copied = store.copy_to(other)
    assert copied.step_names == ("source", "enrich", "score")
    assert counts(copied, "enrich") == {"a": 1, "b": 2}
    queues = [copied.restore(n, step="enrich").queue().elements for n in range(2)]
    assert [element.element_id for queue in queues for element in queue] == ["e"]
    assert other.verify().ok
