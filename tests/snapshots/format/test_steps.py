"""The snapshot of a job: each of its steps comes back as the snapshot of an operator with the same content does."""

from __future__ import annotations

import dataclasses
import json
import pickle
import random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keygroups import ConfigError, ValueState
from keygroups.names import in_step, split_step
from snapshots import SnapshotCorrupted, SnapshotStore, SubtaskSnapshot, WrongStep
from snapshots.format.manifest_head import FEATURES, Head
from snapshots.format.sealing import canonical, opened, sealed
from snapshots.format.steps import of_step
from snapshots.restore.snapshot import Snapshot
from snapshots.versions import read_manifest
from tests.examples import scaled
from tests.snapshot_kit import COUNT, G, content_of, new_store, part, parts, record, restored, watermark
from tests.snapshots.increments import put
from tests.snapshots.job_kit import alone, new_stores, source_parts, write_both
from tests.snapshots.upkeep.varied_operator import Operator, content, elements
from tests.snapshots.upkeep.varied_operator import watermark as lowest_watermark


def job_parts(**content: dict[str, Any]) -> dict[str, list[SubtaskSnapshot]]:
    return {"source": source_parts()} | {step: parts({"count": values}) for step, values in content.items()}


def items(snapshot: Snapshot, parallelism: int, step: str | None = None) -> list[list[object]]:
    return [
        snapshot.restore(subtask, parallelism, step=step).operator_state("positions") for subtask in range(parallelism)
    ]


@settings(max_examples=scaled(24))
@given(
    seed=st.integers(0, 2**32),
    parallelism=st.integers(1, 5),
    restored_at=st.integers(1, 7),
    rounds=st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), min_size=1, max_size=4),
)
def test_steps_are_restored_as_operators_with_their_content(
    seed: int, parallelism: int, restored_at: int, rounds: list[tuple[int, int]]
) -> None:
    draw = random.Random(seed)
    job, stores = new_store(), new_stores("enrich", "score")
    operators = {step: Operator(draw, parallelism, 64) for step in stores}
    for changes in rounds:
        for operator, count in zip(operators.values(), changes, strict=True):
            operator.change(count)
            operator.fill(count // 3)
        snapshot = write_both(job, stores, {step: operator.cut() for step, operator in operators.items()})

    assert snapshot.step_names == ("enrich", "score")
    assert job.verify().ok
    for step, store in stores.items():
        expected = store.load()
        for at in (None, restored_at):
            assert content(alone(snapshot, step), at) == content(expected, at)
            assert elements(alone(snapshot, step), at) == elements(expected, at)
        assert lowest_watermark(alone(snapshot, step)) == lowest_watermark(expected)
        for subtask in range(restored_at):
            share = snapshot.restore(subtask, restored_at, step=step)
            assert share == alone(snapshot, step).restore(subtask, restored_at)
            assert share.operator_state("offsets") == expected.restore(subtask, restored_at).operator_state("offsets")
    assert snapshot.in_flight_count == sum(store.load().in_flight_count for store in stores.values())


def test_a_step_writes_the_deltas_that_an_operator_writes() -> None:
    job, stores = new_store(), new_stores("enrich", "score")
    values = {f"key {n}": n for n in range(200)}
    first = write_both(job, stores, {step: parts({"count": values}) for step in stores})
    backends = {step: [restored(alone(first, step), n) for n in range(2)] for step in stores}
    put(backends["enrich"], "key 7", 70)
    second = job.write({step: [part(one, n, 2) for n, one in enumerate(made)] for step, made in backends.items()})

    assert [file.state for file in second.manifest.files_of("delta")] == ["enrich.count"]
    assert second.manifest.files_of("delta")[0].parent_id == first.manifest.snapshot_id
    assert all(file.version == 1 for file in second.manifest.files_of("keyed", state="score.count"))


def test_a_step_that_begins_later_is_empty_in_the_parent() -> None:
    store = new_store()
    store.write(job_parts(enrich={"a": 1}))
    second = store.write(job_parts(enrich={"a": 2}, score={"b": 3}))
    assert second.step_names == ("source", "enrich", "score")
    assert second.state_names == ("enrich.count", "enrich.profile", "score.count", "score.profile")
    assert content_of(alone(second, "score"))["count"] == {"b": 3}
    assert of_step(second.manifest, "other").channels == ()


def test_a_source_is_a_step_whose_positions_are_assigned_to_subtasks() -> None:
    store, plain = new_store(), new_store()
    job = store.write({"source": source_parts(items=7), "enrich": parts({"count": {"a": 1}})})
    expected = plain.write(source_parts(items=7))
    for parallelism in (1, 2, 3, 5):
        assert items(job, parallelism, "source") == items(expected, parallelism)
        assert items(job, parallelism, "enrich") == [[]] * parallelism


def test_a_repartition_is_of_all_steps() -> None:
    store = new_store()
    store.write(job_parts(enrich={"a": 1, "b": 2}, score={"c": 3}))
    after = store.repartition(3)
    assert (after.parallelism, after.step_names) == (3, ("source", "enrich", "score"))
    assert content_of(alone(after, "enrich"))["count"] == {"a": 1, "b": 2}
    assert after.restore(2, step="score").key_groups.end == G - 1


def test_elements_and_watermarks_stay_with_their_step() -> None:
    store = new_store()
    queues = {
        "enrich": [record("a", 0, element_id="first"), watermark(5, 1)],
        "score": [record("b", 0, element_id="second")],
    }
    made = {
        step: parts({}, in_flight=queue, watermarks={0: n, 1: n + 1}) for n, (step, queue) in enumerate(queues.items())
    }
    job = store.write(made)
    assert job.in_flight_count == 3
    assert {file.state for file in job.manifest.files_of("in_flight")} == {"enrich", "score"}
    for step, queue in queues.items():
        found = [element for n in range(2) for element in job.restore(n, step=step).queue().elements]
        assert {one.element_id for one in found if not one.is_watermark} == {queue[0].element_id}
        assert alone(job, step).in_flight_count == len(queue)
        assert alone(job, step).manifest.watermarks == tuple(subtask.watermark for subtask in made[step])


class TestWrongUse:
    def test_a_step_must_be_named(self) -> None:
        job = new_store().write(job_parts(enrich={"a": 1}))
        with pytest.raises(WrongStep, match=r"step=None: .* a job: name one of its steps source, enrich") as error:
            job.restore(0)
        assert (error.value.value, error.value.step_names) == (None, ("source", "enrich"))
        assert str(pickle.loads(pickle.dumps(error.value))) == str(error.value)

    def test_a_step_must_be_there(self) -> None:
        job = new_store().write(job_parts(enrich={"a": 1}))
        with pytest.raises(WrongStep, match="step='enrch': the job has no such step: name one of source, enrich"):
            job.restore(0, step="enrch")

    def test_an_operator_has_no_steps(self) -> None:
        plain = new_store().write(parts({"count": {"a": 1}}))
        assert plain.step_names == ()
        with pytest.raises(WrongStep, match="of one operator and has no steps"):
            plain.restore(0, step="enrich")

    @pytest.mark.parametrize("step", ["", "a.b", "-a", "ä", "a/b", "x" * 65])
    def test_a_step_is_a_name(self, step: str) -> None:
        with pytest.raises(ConfigError, match="step="):
            new_store().begin().write_subtask(parts({})[0], step=step)


class TestManifest:
    def test_an_operators_manifest_says_nothing_of_steps(self) -> None:
        store = new_store()
        manifest = store.write(parts({"count": {"a": 1}})).manifest
        body = json.loads(read_manifest(store.folder, 1))["manifest"]
        assert all("step" not in channel for channel in body["channels"])
        assert "steps" not in manifest.required_features

    def test_a_jobs_manifest_requires_readers_who_know_steps(self) -> None:
        manifest = new_store().write(job_parts(enrich={"a": 1})).manifest
        assert "steps" in manifest.required_features
        assert Head.from_bytes(Head(manifest).to_bytes(), "x.json").manifest == manifest
        assert "steps" not in of_step(manifest, "enrich").required_features
        assert set(manifest.required_features) <= FEATURES

    @pytest.mark.parametrize(
        "change",
        [
            {"required_features": ["operator_state"]},
            {"state": "other.count"},
            {"state": "count"},
            {"operator_state": "other.positions"},
            {"file": "other"},
            {"file": None},
            {"channel": None},
        ],
        ids=str,
    )
    def test_a_name_without_its_step_is_damage(self, change: dict[str, Any]) -> None:
        job = new_store().write({"source": source_parts(), "enrich": parts({}, in_flight=[record("a", 0)])})
        body = opened(Head(job.manifest).to_bytes(), "x.json", 2**20)
        (what, value), *_ = change.items()
        if what == "required_features":
            body[what] = value
        elif what == "file":
            next(file for file in body["files"] if file["kind"] == "in_flight")["state"] = value
        elif what == "channel":
            del body["channels"][0]["step"]
        else:
            body[f"{what}s"][0]["name"] = value
        with pytest.raises(SnapshotCorrupted, match="a field is"):
            Head.from_bytes(sealed(canonical(body)), "x.json")

    def test_an_operators_state_has_no_step(self) -> None:
        plain = new_store().write(parts({"count": {"a": 1}}))
        info = dataclasses.replace(plain.manifest.states[0], name="enrich.count")
        with pytest.raises(SnapshotCorrupted, match=r"no step for 'enrich\.count'"):
            Head.from_bytes(Head(dataclasses.replace(plain.manifest, states=(info,))).to_bytes(), "x.json")

    def test_an_operator_state_may_have_a_dot_in_its_name(self) -> None:
        assert split_step(in_step("source", "topic.offsets")) == ("source", "topic.offsets")


def test_a_part_and_a_share_travel(tmp_path: Any) -> None:
    store = SnapshotStore(tmp_path, "job")
    pending = pickle.loads(pickle.dumps(store.begin()))
    handles = [
        pickle.loads(pickle.dumps(pending.write_subtask(one, step=step)))
        for step, cuts in job_parts(enrich={"a": 1}).items()
        for one in cuts
    ]
    job = pickle.loads(pickle.dumps(pending.commit(reversed(handles))))
    assert job.step_names == ("enrich", "source")
    shares = [pickle.loads(pickle.dumps(job.restore(n, step="enrich"))) for n in range(2)]
    found = [group for share in shares for group in share.states([COUNT, ValueState("profile")])["count"].values()]
    assert [value for group in found for value in group.load().values()] == [1]


def test_states_are_read_by_their_whole_name() -> None:
    job = new_store().write(job_parts(enrich={"a": 1}, score={"b": 2, "c": 3}))
    assert job.to_arrow("score.count").num_rows == 2
    assert pa.Table.from_batches(job.to_reader("enrich.count")).column("key").to_pylist() == ["a"]
    with pytest.raises(ConfigError, match=r"score\.count"):
        job.to_arrow("count")
