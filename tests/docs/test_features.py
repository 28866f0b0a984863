"""The features of the five texts that this project began with: what each is called here, and which tests show it.

A test says by its mark which feature it shows. The table of the documentation is made of the marks: `pytest tests/docs
--record` writes it.
"""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "explanation" / "features.md"
BEGIN, END = "<!-- made by tests/docs/test_features.py -->", "<!-- end -->"


class Feature(NamedTuple):
    """What a text describes, and the public name that does it."""

    sentence: str
    name: str


ASYNC_IO = "Flink's design of asynchronous I/O"
IN_USE = "A report on asynchronous I/O in use"
RESCALING = "Rescalable state in Flink"
WAITING = "Storm's wait strategies"
MAILBOX = "Flink's mailbox"

FEATURES: dict[str, tuple[Feature, ...]] = {
    ASYNC_IO: (
        Feature("a client's callback completes a call, from any thread", "async_op.CallbackFunction"),
        Feature("outputs in the order of the input", "async_op.AsyncDataStream.ordered_wait"),
        Feature("outputs as calls return, but never past a watermark", "async_op.AsyncDataStream.unordered_wait"),
        Feature("a full queue holds up the input", "async_op.AsyncWaitOperator.process"),
        Feature("a snapshot holds what is in flight, and waits for no call", "async_op.AsyncWaitOperator.snapshot"),
        Feature("a restore calls for pending elements again", "async_op.AsyncWaitOperator.open"),
        Feature("a failed call fails the operator, with the element named", "async_op.ElementFailed"),
        Feature("operators share a client", "async_op.shared"),
    ),
    IN_USE: (
        Feature("a timeout has a fallback", "async_op.AsyncFunction.timeout"),
        Feature("clients that block have threads", "async_op.BlockingFunction"),
        Feature("only the first completion counts", "async_op.ResultFuture"),
        Feature("outputs exactly once, through crashes", "async_op.Job"),
    ),
    RESCALING: (
        Feature("state of a key", "keygroups.ValueState"),
        Feature("key groups", "keygroups.key_group_of"),
        Feature("contiguous ranges of key groups for each subtask", "keygroups.range_of"),
        Feature("what moves in a rescale", "keygroups.plan_rescale"),
        Feature("a restore reads only its own ranges", "snapshots.Snapshot.restore"),
        Feature("a rescale from a snapshot", "snapshots.SnapshotStore.repartition"),
        Feature("a rescale of a running job", "async_op.Job.rescale"),
        Feature("lists that are dealt out anew", "keygroups.OperatorListState"),
        Feature("state that all subtasks have alike", "keygroups.OperatorMapState"),
        Feature("offsets of Kafka's partitions", "async_op.connectors.KafkaSource"),
        Feature("one snapshot of all steps at one barrier", "async_op.Job.snapshot"),
        Feature("a function knows whether it was restored", "async_op.Runtime"),
    ),
    WAITING: (
        Feature("park for a while", "async_op.ParkWait"),
        Feature("wait in three levels", "async_op.ProgressiveWait"),
        Feature("a strategy for each situation, also by Storm's names", "async_op.WaitStrategies"),
        Feature("back-pressure from the consumer to the source", "async_op.connectors.Sink"),
    ),
    MAILBOX: (
        Feature("other threads leave mail for the one that owns the operator", "async_op.AsyncWaitOperator.executor"),
        Feature("a snapshot that is asked for comes before other mail", "async_op.AsyncWaitOperator.executor"),
        Feature("a closed mailbox refuses mail", "async_op.MailboxClosed"),
        Feature("length and latency of the mailbox", "async_op.OperatorStatistics"),
        Feature("functions are told of complete snapshots", "async_op.AsyncFunction.snapshot_complete"),
    ),
}


class Mark(NamedTuple):
    """A test that shows a feature."""

    sentence: str
    module: str
    test: str


def marks() -> Iterator[Mark]:
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        text = path.read_text(encoding="utf-8")
        if "mark.feature" in text:
            yield from marks_in(ast.parse(text), str(path.relative_to(ROOT)))


def marks_in(tree: ast.Module, module: str) -> Iterator[Mark]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        for decorator in node.decorator_list:
            match decorator:
                case ast.Call(func=ast.Attribute(attr="feature"), args=[ast.Constant(value=str(sentence))]):
                    yield Mark(sentence, module, node.name)


def table() -> str:
    """Return the table that the page must have."""
    shown: dict[str, list[str]] = {}
    for mark in marks():
        shown.setdefault(mark.sentence, []).append(f"`{mark.module.removeprefix('tests/')}`: `{mark.test}`")
    lines = []
    for text, features in FEATURES.items():
        lines += [f"## {text}", "", "| feature | name | shown by |", "| --- | --- | --- |"]
        for feature in features:
            lines.append(f"| {feature.sentence} | `{feature.name}` | {'<br>'.join(shown.get(feature.sentence, []))} |")
        lines.append("")
    return "\n".join(lines)


def test_each_feature_is_shown_by_a_test_and_each_mark_is_of_a_feature() -> None:
    sentences = {feature.sentence for features in FEATURES.values() for feature in features}

    assert {mark.sentence for mark in marks()} == sentences


@pytest.mark.parametrize("name", sorted({one.name for features in FEATURES.values() for one in features}))
def test_each_name_is_public(name: str) -> None:
    package, *path = name.removeprefix("async_op.connectors.").split(".") if "connectors" in name else name.split(".")
    found = importlib.import_module("async_op.connectors" if "connectors" in name else package)
    for part in [package, *path] if "connectors" in name else path:
        found = getattr(found, part)


def test_the_page_has_the_table(request: pytest.FixtureRequest) -> None:
    page = PAGE.read_text(encoding="utf-8")
    head, _, rest = page.partition(BEGIN)
    _, _, tail = rest.partition(END)
    made = f"{head}{BEGIN}\n\n{table()}{END}{tail}"
    if request.config.getoption("record"):
        PAGE.write_text(made, encoding="utf-8")
        return

    assert page == made
