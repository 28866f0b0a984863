"""What `explain` says: the facts, what looks wrong, and that what it claims is what operators do."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql.types import LongType, StructField, StructType

from async_op import (
    AdaptiveConcurrency,
    AsyncFunction,
    BlockingFunction,
    Cache,
    ExponentialBackoffRetry,
    FixedDelayRetry,
    RateLimit,
    Resilience,
    Step,
)
from async_op.connectors import FileSink
from async_op.explanation import Found, attempts_within
from async_op.options import OperatorOptions
from async_op.spark import AsyncPipeline, AutoscalePolicy
from async_op.spark.description import NewestSnapshot, Situation, doubts_in, refusals_in
from async_op.testing import OperatorHarness
from keygroups import ConfigError
from snapshots import SnapshotStore
from tests.examples import scaled
from tests.snapshot_kit import parts, record

SCHEMA = StructType([StructField("user", LongType())])


class Look(AsyncFunction[Any, Any]):
    async def async_invoke(self, value: Any, ctx: Any) -> list[Any]:
        return [value]


class Blocking(BlockingFunction[Any, Any]):
    def invoke(self, value: Any, ctx: Any) -> list[Any]:
        return [value]


OPTIONS = OperatorOptions(function=Look(), timeout=10.0, key_by=abs)
NEWEST = NewestSnapshot(parallelism=2, in_flight=3, unfinished_run=None)
SOUND = Situation(
    options=OPTIONS,
    barrier_timeout=5.0,
    is_resident=True,
    parallelism=2,
    max_parallelism=128,
    uri="s3://bucket/op",
    newest=NEWEST,
    slots=2,
)


def options(**changed: Any) -> Situation:
    return replace(SOUND, options=replace(OPTIONS, **changed))


def newest(**changed: Any) -> Situation:
    return replace(SOUND, newest=replace(NEWEST, **changed))


CASES = {
    "a call without end": (replace(options(timeout=None), barrier_timeout=None), "holds up its epoch", "set timeout"),
    "retries in vain": (options(retry=FixedDelayRetry(5, 4.0)), "of 5, 3 can begin in time", "longer timeout"),
    "timed out": (newest(calls=40, timeouts=7), "7 elements timed out, while 40 calls", "longer than timeout=10"),
    "carried over": (replace(SOUND, is_resident=False), "of up to 10 s may outlast", "longer barrier_timeout"),
    "slots": (replace(SOUND, slots=1), "share 1 slots, so they run in 2 waves", "parallelism to 1"),
    "slots for the autoscaler": (
        replace(SOUND, autoscale=AutoscalePolicy(1, 8, 10.0)),
        "up to 8 subtasks, and the session has 2 slots",
        "set max=2",
    ),
    "settings": (
        replace(SOUND, unsuitable={"spark.x": "ends hosts"}),
        "spark.x is on, which ends hosts",
        "switch it off",
    ),
    "uneven": (replace(SOUND, parallelism=100, slots=None, newest=None), "own 2 and others 1", "such as 64"),
    "rescale": (newest(parallelism=3), "rescales to 2, and makes 3 calls in flight again", "else parallelism=3"),
    "snapshot": (replace(SOUND, misfit="it has another hash"), "start refuses the newest snapshot", "another hash"),
    "run": (newest(unfinished_run="h1"), "bounded run 'h1' has not finished", "run_id='h1'"),
    "function": (
        replace(SOUND, refusal="Look holds a lock"),
        "start refuses the function or an option",
        "Look holds a lock",
    ),
    "threads": (options(function=Blocking()), "max_threads=32", "a capacity of 32"),
    "concurrency": (
        options(resilience=Resilience(concurrency=AdaptiveConcurrency(maximum=8))),
        "no more than 8 calls",
        "about 4",
    ),
    "rate": (
        options(resilience=Resilience(rate_limit=RateLimit(10))),
        "at most 101 elements are called",
        "capacity of at most 50",
    ),
}


def findings_in(situation: Situation) -> list[Found]:
    return [*refusals_in(situation), *doubts_in(situation)]


@pytest.mark.parametrize("case", list(CASES))
def test_what_looks_wrong_is_found_alone_with_its_next_step(case: str) -> None:
    situation, problem, advice = CASES[case]
    ((found, step),) = findings_in(situation)
    assert problem in found
    assert advice in step


@pytest.mark.parametrize(
    "situation",
    [
        SOUND,
        replace(SOUND, newest=None, slots=None),
        replace(SOUND, is_resident=False, barrier_timeout=10.0, unsuitable={"spark.x": "ends hosts"}),
        options(retry=FixedDelayRetry(3, 4.0)),
        replace(newest(parallelism=1), is_asked=False, autoscale=AutoscalePolicy(1, 2, 10.0)),
        replace(options(timeout=None), newest=replace(NEWEST, timeouts=7)),
        options(retry=ExponentialBackoffRetry(9, 4.0, 60.0)),
        options(function=Blocking(), capacity=32),
        options(resilience=Resilience(rate_limit=RateLimit(1), cache=Cache(max_entries=9, key=str))),
        options(key_by=None, resilience=Resilience(concurrency=AdaptiveConcurrency(maximum=200))),
    ],
    ids=["sound", "first", "tasks", "retries", "decided", "no timeout", "jitter", "threads", "cache", "concurrency"],
)
def test_what_is_sound_is_not_found(situation: Situation) -> None:
    assert findings_in(situation) == []


@given(st.integers(1, 9), st.integers(0, 5), st.integers(1, 20))
@settings(max_examples=scaled(40))
def test_as_many_attempts_are_made_as_it_says(most: int, delay: int, timeout: int) -> None:
    calls = []

    async def fails(value: Any) -> Any:
        calls.append(value)
        raise OSError

    policy = FixedDelayRetry(most, delay)
    with OperatorHarness(Step(fails, timeout=timeout, retry=policy, on_error="skip")) as harness:
        harness.process(1)
        harness.finish()
    assert len(calls) == attempts_within(policy, timeout)


def test_a_delay_of_a_policy_that_is_none_is_named() -> None:
    policy = type("Mine", (FixedDelayRetry,), {"delay_after": lambda *_: "soon"})(3, 1.0)
    with pytest.raises(ConfigError, match="retry='soon'.*Mine gave it"):
        attempts_within(policy, 5.0)


def test_no_more_elements_are_called_for_within_the_timeout_than_it_says() -> None:
    calls = []

    async def look(value: Any) -> Any:
        calls.append(value)
        await asyncio.sleep(0)

    limits = Resilience(rate_limit=RateLimit(3))
    step = Step(look, timeout=10.0, capacity=100, resilience=limits, on_error="skip")
    with OperatorHarness(step) as harness:
        harness.process_all(range(100))
        harness.finish()
    ((problem, _),) = findings_in(replace(options(capacity=100, resilience=limits), parallelism=1, newest=None))
    assert "at most 31 elements are called" in problem
    assert 30 <= len(calls) <= 31


def pipeline(folder: Path, function: Any = None, **changed: Any) -> AsyncPipeline:
    common = {"key_by": "user", "output_schema": SCHEMA, "operator_id": "look", "parallelism": 3, "timeout": 1.0}
    return AsyncPipeline(function or Look(), snapshots=folder, **(common | changed))


def test_the_facts_of_a_chain_are_shown_without_a_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SparkSession, "getActiveSession", lambda: None)
    SnapshotStore(tmp_path, "look").write(parts({}, (), in_flight=[record("a", 0)]))
    chain = pipeline(tmp_path).then(pipeline(tmp_path, operator_id="next", key_by=None, resident=False))

    found = chain.explain()
    first, second = found.operators["look"], found.operators["next"]
    assert "0: 0-5, 1: 6-10, 2: 11-15" in first["key groups"]
    assert ("version 1 of" in first["snapshots"], "1 in flight" in first["snapshots"]) == (True, True)
    assert first["operators"].startswith("resident")
    assert "commits version 2" in first["next epoch"]
    assert "because resident=False" in second["operators"]
    assert "commits version 1" in second["next epoch"]
    assert all(one.operator_id == "look" and "rescales to 3" in one.problem for one in found.findings)
    assert repr(found) == f"Explanation(operators=['look', 'next'], findings={len(found.findings)})"
    for shown in (str(found), found._repr_html_()):
        assert "rescales to 3" in shown
        assert "distributed by a hash of the row" in shown


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"max_parallelism": 64}, "--max-parallelism 64"),
        ({"hash": "flink"}, "--hash flink"),
        ({"idempotency_namespace": "mine"}, "idempotency namespace"),
    ],
)
def test_what_does_not_fit_the_newest_snapshot_is_a_refusal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: dict[str, Any], reason: str
) -> None:
    monkeypatch.setattr(SparkSession, "getActiveSession", lambda: None)
    SnapshotStore(tmp_path, "look").write(parts({}, (), parallelism=3))
    assert not pipeline(tmp_path).explain().is_refused
    found = pipeline(tmp_path, **changed).explain()
    assert [reason in one.advice for one in found.findings if one.is_refusal] == [True]


def test_what_timed_out_in_the_newest_epoch_is_read_from_its_manifest(tmp_path: Path) -> None:
    pending = SnapshotStore(tmp_path, "look").begin()
    handles = [pending.write_subtask(part) for part in parts({}, parallelism=3)]
    pending.commit(handles, metrics={"calls": 40, "timeouts": 7})
    problems = " ".join(one.problem for one in pipeline(tmp_path).explain().findings)
    assert "in the newest epoch 7 elements timed out, while 40 calls were made" in problems


def test_a_function_that_cannot_be_sent_is_named(tmp_path: Path) -> None:
    holding = Look()
    holding.guard = threading.Lock()  # type: ignore[attr-defined]
    found = pipeline(tmp_path, holding).explain().findings
    assert ["guard" in one.advice for one in found if "refuses the function" in one.problem] == [True]


@pytest.mark.spark
def test_the_session_says_how_many_slots_there_are_and_what_binds_a_function_to_tasks(
    spark: SparkSession, tmp_path: Path
) -> None:
    found = pipeline(tmp_path).explain()
    assert [one.problem for one in found.findings if "slots" in one.problem] == [
        "3 subtasks share 2 slots, so they run in 2 waves that each wait up to 1 s"
    ]

    bound = Look()
    bound.names = spark.sparkContext.broadcast({1: "one"})  # type: ignore[attr-defined]
    place = pipeline(tmp_path, bound).explain().operators["look"]["operators"]
    assert place == "in Spark's tasks, opened for each epoch, because the function holds a broadcast variable"


def test_the_target_of_a_sink_is_looked_at_before_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SparkSession, "getActiveSession", lambda: None)
    sink = FileSink(tmp_path / "out", "json", dead_letters=FileSink(tmp_path / "letters", "json"))
    found = pipeline(tmp_path).explain(sink=sink)
    assert found.findings == ()
    assert found.operators["look"]["sink"].startswith("FileSink(folder=")
    assert not (tmp_path / "out").exists()

    other = FileSink(tmp_path / "letters", "json")
    other.lineage = "another"
    asyncio.run(other.write([{"user": 1}], 1))
    (told,) = pipeline(tmp_path).explain(sink=sink).findings
    assert told.is_refusal
    assert told.advice.startswith("TargetTaken: ")
    assert pipeline(tmp_path).explain(sink=lambda df, epoch: None).findings == ()
