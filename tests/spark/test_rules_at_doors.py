"""The rules of all entry points, at Spark's: a DataFrame, and a pipeline that runs over a bounded one.

`tests/doors/rules.py` says what must come out, and `tests/doors/test_rules_at_doors.py` has the other entry points.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import timestamp_seconds

from async_op import AsyncDataStream
from async_op.spark import AsyncPipeline, run_with_restarts
from tests.doors import restart_rules, rules
from tests.doors.entry_points import Seen, check, check_restarts, letter_of, tried
from tests.doors.restart_rules import NAME, RESTART_RULES, Attempt
from tests.doors.rules import PIPELINE, RULES, TRANSFORM, Element, Rule, default_options, elements_of
from tests.quick import first_is_quick

cloudpickle.register_pickle_by_value(rules)
cloudpickle.register_pickle_by_value(restart_rules)
pytestmark = pytest.mark.spark

OUTPUTS: dict[str, Any] = {"output_schema": "said string"}


def rules_at(rules: Mapping[str, Any], entry_point: str) -> list[Any]:
    """Return the rules of an entry point; the same rules are tried without Spark in a second each."""
    return first_is_quick(sentence for sentence, rule in rules.items() if entry_point not in rule.lacks)


def frame_of(elements: list[Element], spark: SparkSession) -> DataFrame:
    return spark.createDataFrame(elements, "id bigint, key string").coalesce(1)


def options_of(rule: Rule) -> dict[str, Any]:
    options = default_options(rule) | OUTPUTS
    if options.get("on_error") == "dead_letter":
        options["dead_letters"] = "column"
    return options


def note(seen: Seen, frame: DataFrame) -> None:
    """Note the rows of outputs and of dead letters."""
    for row in frame.collect():
        if (letter := row.asDict().get("dead_letter")) is not None:
            seen.letters.append(letter_of(letter))
        else:
            seen.says.append(row["said"])


@pytest.mark.parametrize("sentence", rules_at(RULES, TRANSFORM))
def test_a_rule_holds_for_a_dataframe(sentence: str, spark: SparkSession) -> None:
    rule = RULES[sentence]

    def run(seen: Seen) -> None:
        options = options_of(rule)
        call = getattr(AsyncDataStream, f"{options.pop('mode')}_wait")
        note(seen, call(frame_of(rule.elements, spark), rule.function(), **options))

    check(rule, tried(run))


@pytest.mark.parametrize("sentence", rules_at(RULES, PIPELINE))
def test_a_rule_holds_for_a_pipeline(sentence: str, spark: SparkSession, tmp_path: Path) -> None:
    rule = RULES[sentence]

    def run(seen: Seen) -> None:
        pipeline = AsyncPipeline(
            rule.function(),
            snapshots=tmp_path,
            operator_id="rule",
            parallelism=1,
            order_by="id",
            barrier_timeout=None,
            event_time="at" if rule.has_event_time else None,
            **options_of(rule),
        )
        frame = frame_of(rule.elements, spark)
        if rule.has_event_time:
            frame = frame.withColumn("at", timestamp_seconds("id"))
        pipeline.run(frame, lambda batch, epoch: note(seen, batch), run_id="rule")

    check(rule, tried(run))


@pytest.mark.parametrize("sentence", rules_at(RESTART_RULES, PIPELINE))
def test_a_rule_of_restarts_holds_for_a_pipeline(sentence: str, spark: SparkSession, tmp_path: Path) -> None:
    finished = 0

    def run(attempt: Attempt, seen: Seen, folder: Path) -> None:
        nonlocal finished
        placed, options = restart_rules.options_of(attempt)
        function = attempt.function(folder)
        pipeline = AsyncPipeline(function, snapshots=folder, operator_id=NAME, **placed, **options, **OUTPUTS)
        rows = elements_of(attempt.keys)[finished:]

        def work() -> None:
            options = {"run_id": f"run-{finished}", "chunk_rows": 1 if attempt.row_by_row else None}
            pipeline.run(frame_of(rows, spark), lambda batch, epoch: note(seen, batch), **options)

        work() if attempt.restart is None else run_with_restarts(work, attempt.restart)
        finished += len(rows)

    check_restarts(RESTART_RULES[sentence], tmp_path, run)
