"""What Prometheus sees: names, units, values; and that asking harms nobody."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from async_op import AsyncWaitOperator, Budget, CircuitBreaker, RateLimit, Resilience, Step
from async_op.metrics.prometheus import PrometheusMetrics
from tests.async_op.job.kit import Epochs, Gated, Log, new_job, running
from tests.async_op.metrics.kit import CALLS, Echo, run_everything

DASHBOARD = Path(__file__).parents[3] / "dashboards" / "keygroups.json"

_FUNCTIONS = {"by", "histogram_quantile", "le", "max", "rate", "sum", "without"}


@pytest.fixture
def metrics() -> Iterator[PrometheusMetrics]:
    collector = PrometheusMetrics(CollectorRegistry())
    yield collector
    collector.close()


def text_of(metrics: PrometheusMetrics) -> str:
    return generate_latest(metrics._registry).decode()


def values_of(text: str) -> dict[str, list[tuple[dict[str, str], float]]]:
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found


async def test_everything_is_counted(metrics: PrometheusMetrics) -> None:
    seen = values_of(await run_everything(metrics.watches, lambda: text_of(metrics)))

    place = {"operator": "enrich", "subtask": "0"}
    assert seen["keygroups_operator_accepted_total"] == [(place, CALLS + 2)]
    assert seen["keygroups_operator_calls_total"] == [(place, CALLS + 1)]
    assert seen["keygroups_operator_cache_hits_total"] == [(place, 1)]
    assert seen["keygroups_operator_call_duration_seconds_count"] == [(place, CALLS + 1)]
    assert dict(seen["keygroups_operator_in_flight"][0][0]) == {**place, "stage": "pending"}
    assert [value for _, value in seen["keygroups_operator_circuit"]] == [1, 0, 0]
    assert [value for _, value in seen["keygroups_snapshots_total"]] == [1]
    assert [value for _, value in seen["keygroups_rescales_total"]] == [1]
    assert [value for _, value in seen["keygroups_restores_total"]] == [1]
    assert [value for _, value in seen["keygroups_epoch_rows_total"]] == [7]
    assert [value for _, value in seen["keygroups_epoch_duration_seconds_sum"]] == [1.5]
    assert seen["keygroups_snapshot_bytes_total"][0][1] > 0


async def test_names_carry_units_and_labels_are_few(metrics: PrometheusMetrics) -> None:
    text = await run_everything(metrics.watches, lambda: text_of(metrics))

    families = list(text_string_to_metric_families(text))
    labels = {name for family in families for sample in family.samples for name in sample.labels}
    assert labels == {"operator", "subtask", "stage", "activity", "state", "outcome", "le"}
    for family in families:
        assert re.fullmatch(r"keygroups_[a-z_]+", family.name)
        assert family.documentation
        assert "_time_" not in family.name or family.name.endswith("_seconds")
    series = len(text.splitlines())
    assert series < 700, "one operator with everything on"


async def test_the_loop_itself_may_ask(metrics: PrometheusMetrics) -> None:
    operator = AsyncWaitOperator(Echo(), lambda _: None)
    await operator.open()
    stop = metrics.watches.add("enrich", operator)
    await operator.process(1)
    seen = values_of(text_of(metrics))
    stop()
    await operator.close()

    assert seen["keygroups_operator_accepted_total"][0][1] == 1
    assert text_of(metrics) == ""


def test_after_the_end_of_its_loop_an_operator_keeps_its_last_counts(metrics: PrometheusMetrics) -> None:
    async def run() -> None:
        operator = AsyncWaitOperator(Echo(), lambda _: None)
        await operator.open()
        metrics.watches.add("enrich", operator)
        await operator.process(1)
        await operator.finish()
        text_of(metrics)
        await operator.close()

    thread = threading.Thread(target=asyncio.run, args=(run(),))
    thread.start()
    thread.join()

    assert values_of(text_of(metrics))["keygroups_operator_emitted_total"][0][1] == 1


async def test_a_job_is_watched_from_before_its_start_until_after_its_end(metrics: PrometheusMetrics) -> None:
    function = Gated()
    job = new_job(Log([1]), function, sink := Epochs())
    stop = metrics.watches.add_job(job)
    assert states_of(values_of(text_of(metrics))) == ["new"]
    async with running(job):
        await function.arrived.wait()
        seen = values_of(await asyncio.to_thread(text_of, metrics))
        assert states_of(seen) == ["running"]
        assert seen["keygroups_job_in_flight"] == [({"job": "job", "step": "Gated"}, 1)]
        function.gate.set()
        await sink.have(1)
    seen = values_of(text_of(metrics))
    assert states_of(seen) == ["ended"]
    for name, value in {"records_total": 1, "outputs_total": 1, "partitions": 1, "undelivered": 0}.items():
        assert seen[f"keygroups_job_{name}"] == [({"job": "job"}, value)]
    stop()
    assert "keygroups_job" not in text_of(metrics)


async def test_the_limits_of_a_job_are_told_for_each_step(metrics: PrometheusMetrics) -> None:
    budget = Budget(10, "calls", cost=lambda _: 1)
    limits = Resilience(budget=budget, rate_limit=RateLimit(1000.0), circuit_breaker=CircuitBreaker())
    job = new_job(Log([1, 2, 3]), Step(function := Gated(), name="ask", resilience=limits), sink := Epochs())
    metrics.watches.add_job(job)
    async with running(job):
        function.gate.set()
        await sink.have(3)
        seen = values_of(await asyncio.to_thread(text_of, metrics))

    place = {"job": "job", "step": "ask"}
    assert seen["keygroups_job_spent_total"] == [({**place, "unit": "calls"}, 3)]
    assert seen["keygroups_job_budget_left"] == [({**place, "unit": "calls"}, 7)]
    assert seen["keygroups_job_budget_refused_total"] == [(place, 0)]
    assert [labels["state"] for labels, value in seen["keygroups_job_circuit"] if value] == ["closed"]


def states_of(seen: dict[str, list[tuple[dict[str, str], float]]]) -> list[str]:
    return [labels["state"] for labels, value in seen["keygroups_job_state"] if value]


async def test_the_dashboard_asks_only_for_what_there_is(metrics: PrometheusMetrics) -> None:
    exposed = set(values_of(await run_everything(metrics.watches, lambda: text_of(metrics))))
    metrics.watches.add_job(job := new_job(Log([1]), function := Gated(), Epochs()))
    async with running(job):
        await function.arrived.wait()
        exposed |= set(values_of(await asyncio.to_thread(text_of, metrics)))
        function.gate.set()
    panels = json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]
    queries = [target["expr"] for panel in panels for target in panel.get("targets", [])]

    asked = {name for query in queries for name in re.findall(r"keygroups_[a-z_]+", query)}
    assert len(queries) > 10
    assert asked - exposed == set()
    for query in queries:
        names = set(re.findall(r"[a-z_]+(?=[({ ])", re.sub(r'"[^"]*"|\{[^}]*\}|\[[^]]*\]', " ", query)))
        assert {name for name in names if not name.startswith("keygroups_")} <= _FUNCTIONS | {"operator", "subtask"}
        assert query.count("(") == query.count(")")
