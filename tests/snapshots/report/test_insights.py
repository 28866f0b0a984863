"""What the report says beside the snapshot itself: epochs, changes since the parent, samples on request."""

from __future__ import annotations

from pathlib import Path

import pytest

from keygroups import ListState, ValueState
from snapshots import Snapshot, SnapshotStore
from snapshots.inspection import Commit
from snapshots.report import render
from snapshots.report.page import ReportedEpoch, epochs_among, samples_of, since_parent
from tests.snapshot_kit import new_store, parts, record
from tests.snapshots.cli_kit import runner
from tests.snapshots.report.test_report import HOSTILE, Elements


def commit(version: int, second: int, operation: str = "write", **metrics: int) -> Commit:
    created_at = f"2026-01-01T00:00:{second:02}+00:00"
    return Commit(
        version=version, snapshot_id=str(version), created_at=created_at, operation=operation, parallelism=1,
        metrics=metrics,
    )  # fmt: skip


def test_an_epoch_lasts_from_the_version_before() -> None:
    commits = [
        *(commit(1, 0, "claim"), commit(2, 3, calls=5), commit(3, 4), commit(4, 9, "repartition")),
        *(commit(5, 1, calls=7), commit(6, 3, calls=0), commit(7, 4)),
    ]

    assert epochs_among(commits, 6) == [ReportedEpoch(2, 3.0, 5), ReportedEpoch(3, 1.0, None), ReportedEpoch(6, 2.0, 0)]
    assert epochs_among([], 1) == []


@pytest.fixture
def store() -> SnapshotStore:
    """Two epochs with metrics; the second adds one row, removes one and changes one."""
    made = new_store()
    for content in ({"a": 1, "b": 2, "c": 3}, {"a": 1, "b": 0, "d": 4}):
        pending = made.begin()
        handles = [
            pending.write_subtask(part)
            for part in parts({"count": content, "profile": {"a": HOSTILE[0]}}, in_flight=[record("a", 0)])
        ]
        pending.commit(handles, metrics={"calls": 1234, "rows": 7, "oldest_call_milliseconds": 1500})
    return made


def text_of(page: str) -> str:
    elements = Elements(page)
    assert elements.open == []
    return " ".join(" ".join(elements.text).split())


def test_the_page_shows_epochs_and_changes(store: SnapshotStore) -> None:
    text = text_of(render(store, store.load()))

    assert "The newest epoch. The time" in text
    assert "Time per epoch" in text
    assert "Calls per epoch version 2: 1,234" in text
    assert "Since the parent" in text
    assert "count 1 1 1" in text


def test_the_page_shows_how_long_the_oldest_call_has_been_under_way(store: SnapshotStore) -> None:
    assert "0 watermarks. The oldest call had been under way for 1.5 s. An age is" in text_of(
        render(store, store.load())
    )
    store.claim()  # it counts nothing
    assert "The oldest call" not in text_of(render(store, store.load()))


def test_what_cannot_be_compared_is_left_out(store: SnapshotStore) -> None:
    assert since_parent(store, store.load(1)) is None
    rewritten = store.repartition(2, max_parallelism=32, rewrite=True)
    assert since_parent(store, rewritten) is None
    assert "Since the parent" not in text_of(render(store, rewritten))
    assert "Since the parent" not in text_of(render(store, store.load(2), largest=0))


def test_values_are_shown_on_request_only_and_escaped(store: SnapshotStore) -> None:
    without, with_samples = render(store, store.load(), largest=0), render(store, store.load(), samples=2)

    assert "owned" not in without
    assert HOSTILE[0] not in with_samples
    assert HOSTILE[0] in text_of(with_samples)
    assert "Samples" in text_of(with_samples)


def test_samples_are_bounded() -> None:
    snapshot: Snapshot = new_store().bootstrap(
        {ValueState("n"): [(f"key {n}", n) for n in range(100)], ListState("tags"): [("a", ["x", "y", "z"])]},
        parallelism=2,
    )

    found = samples_of(snapshot, 3)

    assert {name: len(rows) for name, rows in found.items()} == {"n": 3, "tags": 3}
    assert [row.entry for row in found["tags"]] == [0, 1, 2]
    assert samples_of(snapshot, 0) == {}


def test_the_command_takes_samples(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = SnapshotStore(tmp_path, "enrich")
    made.bootstrap({ValueState("word"): [("a", "a value to see")]}, parallelism=1)
    target = tmp_path / "report.html"

    assert runner(capsys)("report", made.uri, "-o", target).code == 0
    assert "a value to see" not in target.read_text()
    assert runner(capsys)("report", made.uri, "-o", target, "--samples", 1).code == 0
    assert "a value to see" in target.read_text()
