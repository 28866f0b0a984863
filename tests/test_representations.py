"""What objects look like: one short line in a console, a table in a notebook, and no secrets in either."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
from collections.abc import Iterator
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from async_op import (
    AsyncWaitOperator,
    Cache,
    DeadLetter,
    ExponentialBackoffRetry,
    FixedDelayRetry,
    Job,
    JobProgress,
    OperatorStatistics,
    Record,
    Resilience,
    ResilienceStatistics,
    Step,
)
from async_op.connectors import FileSink, FileSource
from async_op.spark import AsyncPipeline, ConnectQuery, EpochProgress, Explanation, Finding, PipelineQuery
from async_op.testing import OperatorHarness, RecordedService
from keygroups import AggregatingState, ReducingState, RescalePlan, ValueState, plan_rescale
from keygroups.representation import LENGTH_MAX, ROWS_MAX, html_facts, html_table, short
from snapshots import GarbageReport, InFlightElement, Snapshot, VerifyReport
from snapshots.inspection import (
    Difference,
    RecentVersions,
    compare,
    find_key,
    history,
    in_flight_summary,
    key_group_sizes,
)
from tests.snapshot_kit import new_store, parts, record

PACKAGES = ("keygroups", "async_op", "async_op.connectors", "async_op.spark", "async_op.testing")
PACKAGES += ("snapshots", "snapshots.inspection")

HUGE = "secret" * 5_000


def classes() -> Iterator[Any]:
    """Return the public classes of which users meet instances."""
    for package in PACKAGES:
        module = importlib.import_module(package)
        for name in module.__all__:
            thing = getattr(module, name)
            if isinstance(thing, type) and not issubclass(thing, BaseException):
                is_theirs = inspect.isabstract(thing) or getattr(thing, "_is_protocol", False)
                if not is_theirs and name not in OF_USERS:
                    yield pytest.param(thing, id=f"{package}.{name}")


OF_USERS = {
    *("Function", "AsyncFunction", "AsyncBatchFunction", "BlockingFunction", "CallbackFunction", "Source", "Sink"),
    "AsyncDataStream",  # has no instances
}
"""Classes of which users make subclasses; what these look like is up to them."""


@pytest.mark.parametrize("kind", list(classes()))
def test_every_public_class_says_what_it_is(kind: type) -> None:
    assert kind.__repr__ is not object.__repr__, "define __repr__: keygroups.representation has what it takes"


@pytest.fixture(scope="module")
def instances() -> list[Any]:
    """Return instances with as much in them as there can be."""
    store = new_store()
    many: dict[Any, Any] = {f"key {number}": {"n": number, "text": HUGE} for number in range(30)}
    waiting = [record(key, sequence, value=HUGE) for sequence, key in enumerate(many)]
    first = store.write(parts({"profile": many}, in_flight=waiting), source_position={"a": "b" * 999})
    second = store.write(parts({"profile": {"key 1": 1}}))
    cut = parts({"profile": many})[0]
    pending = store.begin()
    unused: Any = None
    return [
        *(store, first, pending, store.edit(), first.restore(0), cut, pending.write_subtask(cut), store.verify()),
        *(store.collect_garbage(keep_last=1, min_age=0), compare(first, second, rows=100), RecentVersions(store)),
        *(RecentVersions(store).activity(0.0), *history(store), in_flight_summary(first)),
        *(find_key(first, ["key 1"]), *key_group_sizes(first).values(), first.manifest),
        *(ReducingState("total", lambda one, other: one + other), AggregatingState("mean", list, max, len)),
        *(
            ValueState("profile", pa.struct([(f"field_{n}", pa.int64()) for n in range(500)])),
            plan_rescale(1, 999, 9999),
        ),
        *(FixedDelayRetry(3, 1.0), ExponentialBackoffRetry(3, 1.0, 9.0, retry_on=lambda error: True)),
        *(Record({"text": HUGE}, 1), InFlightElement(0, 0, value=HUGE, key=HUGE, outputs=(HUGE,) * 99)),
        Resilience(cache=Cache(max_entries=10, key=lambda value: value)),
        DeadLetter(value=HUGE, timestamp=1, key=HUGE, idempotency_key="a", attempts=1, error=ValueError("x" * 99_999)),
        AsyncWaitOperator(lambda value: value, lambda element: None),
        Job([HUGE], lambda value: value, print, snapshots="memory://jobs", job_id="copy"),
        JobProgress(job_id="copy", state="running", in_flight={f"<{number}>": number for number in range(99)}),
        ResilienceStatistics(cache_hits=10**18, circuit="open", spent={f"<{number}>": 1.5 for number in range(99)}),
        PipelineQuery(unused, unused),  # before its start it has no use for a chain and a session
        Explanation({"op": {"<b>": HUGE}}, (Finding("op", HUGE, "<script>"),) * 99),
        *(OperatorHarness(lambda value: value), RecordedService("answers.json")),
        FileSource("s3://user:hunter2@bucket/*.csv?token=s3cr3t", "csv", storage_options={"secret": "s3cr3t"}),
        FileSink("s3://user:hunter2@bucket/out?token=s3cr3t", "parquet", storage_options={"secret": "s3cr3t"}),
    ]


def test_a_representation_is_one_short_line_without_secrets_and_addresses(instances: list[Any]) -> None:
    for thing in instances:
        text = repr(thing)

        assert "\n" not in text
        assert len(text) <= LENGTH_MAX
        assert not [word for word in (" at 0x", "hunter2", "s3cr3t") if word in text], text


class Tags(HTMLParser):
    """Collects the tags and the text of HTML, and refuses tags that are not closed."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert attrs == []
        self.open.append(tag)
        self.seen.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def tags_of(html: str) -> Tags:
    tags = Tags()
    tags.feed(html)
    assert tags.open == []
    assert tags.seen <= {"table", "caption", "tr", "th", "td"}
    return tags


WITH_HTML = [
    *(Snapshot, RescalePlan, VerifyReport, GarbageReport, OperatorStatistics),
    *(Difference, AsyncPipeline, EpochProgress, Explanation, Job, JobProgress, ResilienceStatistics),
    *(PipelineQuery, ConnectQuery),
]


@pytest.mark.parametrize("kind", WITH_HTML)
def test_notebooks_get_tables(kind: Any) -> None:
    assert callable(kind._repr_html_)


def test_tables_are_bounded_and_escaped(instances: list[Any]) -> None:
    with_html = [thing for thing in instances if hasattr(thing, "_repr_html_")]

    assert len(with_html) > 4
    for thing in with_html:
        html = thing._repr_html_()
        tags_of(html)
        assert html.count("<tr>") <= ROWS_MAX + 2
        assert len(html) < 100_000


def test_statistics_show_what_is_not_zero() -> None:
    fields = {field.name: 0 for field in dataclasses.fields(OperatorStatistics) if field.default is dataclasses.MISSING}
    made = OperatorStatistics(**(fields | {"in_flight": 3}))  # type: ignore[arg-type]

    assert repr(made) == "OperatorStatistics(in_flight=3)"
    assert "in_flight" in tags_of(made._repr_html_()).text


def test_the_progress_of_a_job_and_what_limits_did_show_what_is_not_zero() -> None:
    progress = JobProgress(job_id="orders", state="running", records=1200, in_flight={"enrich": 3})
    limits = ResilienceStatistics(cache_hits=1200)

    text = tags_of(progress._repr_html_()).text
    assert text == "job ordersjob_idordersstaterunningrecords1,200in_flight{'enrich': 3}"
    assert tags_of(limits._repr_html_()).text == "limits of an operatorcache_hits1,200"


class Hostile:
    """An object whose representation has markup, several lines, and more text than anybody wants."""

    def __repr__(self) -> str:
        return "<script>alert(1)</script>\n" + HUGE


@given(
    st.recursive(
        st.text() | st.integers() | st.binary(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
    )
)
def test_whatever_a_table_shows_is_escaped(value: Any) -> None:
    tags_of(html_table(str(value), ["a", str(value)], [[value, Hostile()]]))
    assert "<script>" not in html_facts("title", {"a": Hostile(), "b": "<script>"})


@pytest.mark.parametrize(
    "value",
    [
        object(),
        Hostile(),
        [Hostile()] * 9,
        {"a": np.zeros(10**6)},
        HUGE,
        HUGE.encode(),
        pa.table({"a": [1] * 999}),
        [[[[1]]]],
    ],
)
def test_any_value_is_shown_on_one_short_line(value: object) -> None:
    assert "\n" not in short(value)
    assert len(short(value)) <= LENGTH_MAX


def test_a_step_begins_with_its_function_and_its_name() -> None:
    assert repr(Step(len, "lengths", timeout=2.0)).startswith("Step(function=len, name='lengths', ")
