"""Each option stands in a table, with its default and when to change it."""

from __future__ import annotations

import inspect
import re
import tomllib
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import pytest

from async_op import AdaptiveConcurrency, Budget, Cache, CircuitBreaker, Job, RateLimit, SingleFlight, Step
from async_op.connectors import DeltaSink, FileSink, IcebergSink, KafkaSink, PostgresSink
from async_op.options import SharedOptions
from async_op.spark import AsyncPipeline
from tests.docs.pages import ROOT

SHARED = {field.name for field in fields(SharedOptions)}
"""What every entry point takes; they are all in the table of `Step`."""

TABLES = {
    Job: ("howto/job.md", {"source", "steps", "sink", "snapshots", "job_id"}),
    Step: ("howto/functions.md", {"function"}),
    AsyncPipeline: ("reference/spark-settings.md", {"function"} | SHARED),
    FileSink: ("howto/connectors.md", set()),
    PostgresSink: ("howto/connectors.md", set()),
    KafkaSink: ("howto/kafka.md", set()),
    DeltaSink: ("howto/delta.md", set()),
    IcebergSink: ("howto/iceberg.md", set()),
}
"""The page with the table of a class, and the arguments that are not options."""

PARTS = (AdaptiveConcurrency, Budget, Cache, CircuitBreaker, RateLimit, SingleFlight)


def test_every_extra_is_in_the_table_of_the_first_page() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    named = {name for cells in rows("index.md") if len(cells) == 2 for name in re.findall(r"`(\w+)`", cells[0])}

    assert named == set(project["optional-dependencies"])


def rows(page: str) -> Iterator[list[str]]:
    """Yield the cells of each row of the tables of a page."""
    for line in (ROOT / "docs" / page).read_text(encoding="utf-8").splitlines():
        if line.startswith("| `"):
            yield [cell.strip() for cell in line.strip("|").split(" | ")]


def documented(page: str) -> set[str]:
    return {name for cells in rows(page) if len(cells) >= 3 for name in re.findall(r"`([\w.]+)`", cells[0])}


@pytest.mark.parametrize("owner", TABLES, ids=lambda owner: owner.__name__)
def test_every_option_is_in_a_table(owner: Any) -> None:
    page, others = TABLES[owner]

    assert set(inspect.signature(owner).parameters) - others - documented(page) == set()


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.__name__)
def test_every_option_of_a_limit_is_in_the_table(part: Any) -> None:
    names = {f"{part.__name__}.{name}" for name in inspect.signature(part).parameters}

    assert names - documented("resilience.md") == set()
