"""The commit of a job: the parts of all its steps, or nothing."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from snapshots import (
    CommitConflict,
    IncompatibleSnapshot,
    IncompleteSnapshot,
    OperatorStateCut,
    SnapshotStore,
    SubtaskSnapshot,
    UnequalCopies,
    WriterFenced,
)
from snapshots.commit.part_writer import SubtaskHandle
from tests.snapshot_kit import G, content_of, new_store, parts, record
from tests.snapshots.job_kit import alone, source_parts

STEPS = {"source": source_parts(), "enrich": parts({"count": {"a": 1}}, in_flight=[record("a", 0)])}


def handles_of(store: SnapshotStore, steps: dict[str, list[SubtaskSnapshot]] | None = None) -> list[SubtaskHandle]:
    pending = store.begin()
    return [pending.write_subtask(one, step=step) for step, cuts in (steps or STEPS).items() for one in cuts]


@pytest.mark.parametrize(
    ("left_out", "problem"),
    [(0, r"subtasks \[0\] of step source wrote nothing"), (3, r"subtasks \[1\] of step enrich wrote nothing")],
)
def test_a_part_that_is_missing_commits_nothing(left_out: int, problem: str) -> None:
    store = new_store()
    handles = handles_of(store)
    del handles[left_out]
    with pytest.raises(IncompleteSnapshot, match=problem):
        store.begin().commit(handles)
    assert store.versions() == []


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"step": None}, "some parts are of a step and some are not"),
        ({"states": ()}, "of step enrich differ in states"),
        ({"hash": "flink"}, "of step enrich differ in hash"),
    ],
    ids=str,
)
def test_parts_that_do_not_belong_together_commit_nothing(change: dict[str, Any], problem: str) -> None:
    store = new_store()
    *handles, last = handles_of(store)
    with pytest.raises(IncompleteSnapshot, match=problem):
        store.begin().commit([*handles, dataclasses.replace(last, **change)])
    assert store.versions() == []


def test_all_steps_have_one_parallelism() -> None:
    store = new_store()
    with pytest.raises(IncompleteSnapshot, match="the steps source and enrich differ in parallelism"):
        store.write({"source": source_parts(parallelism=3), "enrich": parts({"count": {"a": 1}})})
    with pytest.raises(IncompleteSnapshot, match="the steps source and enrich differ in max_parallelism"):
        store.write({"source": source_parts(max_parallelism=2 * G), "enrich": parts({})})
    assert store.versions() == []


def test_a_part_of_another_job_is_refused() -> None:
    store, other = new_store(), new_store()
    mine, others = (
        handles_of(store),
        handles_of(other, {"source": source_parts(), "enrich": parts({"count": {"b": 2}})}),
    )
    with pytest.raises(IncompleteSnapshot, match="the coordinator finds nothing"):
        store.begin().commit([*mine[:3], others[3]])
    store.write(STEPS)
    second = handles_of(store)
    with pytest.raises(IncompleteSnapshot, match="differ in parent_id"):
        store.begin().commit([*second[:3], others[3]])
    with pytest.raises(IncompleteSnapshot, match="the steps source and enrich differ in parent_id"):
        store.begin().commit([*second[:2], *others[2:]])
    with pytest.raises(IncompleteSnapshot, match="on top of another snapshot"):
        store.begin().commit(mine)
    assert store.versions() == [1]


def test_attempts_of_a_step_are_told_apart_from_its_parts() -> None:
    store = new_store()
    pending = store.begin()
    cuts = [(step, one) for step, ones in STEPS.items() for one in ones] * 2
    job = pending.commit([pending.write_subtask(one, step=step) for step, one in cuts])
    assert len(job.manifest.channels) == 4
    assert content_of(alone(job, "enrich"))["count"] == {"a": 1}
    assert store.verify().ok


def test_a_broadcast_state_is_equal_within_its_step() -> None:
    def holding(*copies: str) -> list[SubtaskSnapshot]:
        return [
            dataclasses.replace(one, operator_states=(OperatorStateCut("rules", "broadcast", (copy,)),))
            for one, copy in zip(source_parts(), copies, strict=True)
        ]

    store = new_store()
    with pytest.raises(UnequalCopies, match=r"score\.rules"):
        store.write({"enrich": holding("x", "x"), "score": holding("x", "y")})
    job = store.write({"enrich": holding("x", "x"), "score": holding("y", "y")})
    assert job.restore(0, 3, step="score").operator_state("rules") == ["y"]


class TestParent:
    def test_a_step_with_content_cannot_be_forgotten(self) -> None:
        store = new_store()
        store.write(STEPS)
        with pytest.raises(IncompleteSnapshot, match="step enrich, which has state or elements in version 1"):
            store.write({"source": source_parts()})
        with pytest.raises(IncompleteSnapshot, match="step source, which has state"):
            store.write({"enrich": parts({"count": {}})})
        assert store.versions() == [1]

    def test_a_step_without_content_may_go(self) -> None:
        store = new_store()
        store.write(STEPS | {"format": source_parts(items=0)})
        assert store.write(STEPS).step_names == ("source", "enrich")

    @pytest.mark.parametrize("is_job", [True, False])
    def test_jobs_and_operators_do_not_continue_each_other(self, is_job: bool) -> None:
        store = new_store()
        plain = parts({"count": {"a": 1}})
        store.write(STEPS if is_job else plain)
        with pytest.raises(IncompatibleSnapshot, match="cannot continue each other"):
            store.write(plain if is_job else STEPS)
        assert store.versions() == [1]

    def test_a_job_begins_with_a_claim_of_an_empty_folder(self) -> None:
        store = new_store()
        claim = store.claim(parallelism=2, max_parallelism=G)
        assert claim.snapshot.step_names == ()
        job = claim.write(STEPS, source_position={"epoch": 1})
        assert (job.version, job.step_names) == (2, ("source", "enrich"))
        store.claim()
        with pytest.raises(WriterFenced):
            claim.write(STEPS)
        assert store.load().step_names == ("source", "enrich")

    def test_the_second_of_two_writers_meets_a_conflict(self) -> None:
        store = new_store()
        one, two = (store.begin() for _ in range(2))
        cuts = [(step, cut) for step, ones in STEPS.items() for cut in ones]
        of_two = [two.write_subtask(cut, step=step) for step, cut in cuts]
        one.commit([one.write_subtask(cut, step=step) for step, cut in cuts])
        with pytest.raises(CommitConflict):
            two.commit(of_two)
