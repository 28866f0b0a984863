"""The command `top`: what it shows of a running operator, when it looks again, and how it ends."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import pty
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from keygroups import key_group_of
from keygroups.ranges import range_of
from snapshots import SnapshotStore
from snapshots.cli import live, running
from snapshots.cli.running import TopReport
from snapshots.filesystem import LocalFolder
from snapshots.format.epoch_under_way import FRESH_SECONDS, EpochUnderWay, note_under_way
from snapshots.inspection import RecentVersions, Size, SubtaskShare
from tests.snapshot_kit import part, parts, record, restored, words
from tests.snapshots.cli_kit import Cli
from tests.snapshots.epochs import Time, commit_epoch

ROOT = Path(__file__).parents[3]


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    """One clock for the writer and the command."""
    made = Time()
    made.rule(monkeypatch)
    monkeypatch.setattr(running, "wall_time", lambda: round(made.seconds * 1000))
    return made


@pytest.fixture
def store(tmp_path: Path, time: Time) -> SnapshotStore:
    """A pipeline: a claim, and two epochs 4 seconds apart."""
    made = SnapshotStore(tmp_path, "enrich")
    made.claim(parallelism=2, max_parallelism=16)
    for retries in (3, 0):
        time.seconds += 4
        elements = [record(key, number) for number, key in enumerate("abc")]
        counts = {"rows": 40, "outputs": 38, "calls": 40 + retries, "retries": retries, "timeouts": 0}
        others = {"dead_letters": retries, "rate_limited": 0, "cache_hits": 1000}
        commit_epoch(made, 100, 2, elements, **counts, **others, resident=2, oldest_call_milliseconds=1500)
    time.seconds += 1
    return made


@pytest.fixture
def between(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[float]]:
    """Return what does something between two looks, and interrupts the command after the last one."""

    def prepare(*doings: Callable[[], object]) -> list[float]:
        pauses: list[float] = []

        def pause(seconds: float) -> None:
            pauses.append(seconds)
            if len(pauses) > len(doings):
                raise KeyboardInterrupt
            doings[len(pauses) - 1]()

        monkeypatch.setattr(running, "pause", pause)
        return pauses

    return prepare


def test_top_tells_what_a_pipeline_does(cli: Cli, store: SnapshotStore) -> None:
    answer = cli("top", store.uri, "--once", "--json")

    assert (answer.code, answer.err, answer.out.count("\n")) == (0, "", 1)
    report = answer.json
    assert (len(report.pop("subtasks")), report.pop("children")) == (2, [])
    recent = report.pop("recent")
    assert [(one["version"], one["operation"], one["rows"]) for one in recent] == [
        (1, "claim", None),
        (2, "write", 40),
        (3, "write", 40),
    ]
    counts = {name: count for name, count in report.pop("counts").items() if count is not None}
    assert counts == {
        "rows": 80,
        "outputs": 76,
        "calls": 83,
        "retries": 3,
        "timeouts": 0,
        "dead_letters": 3,
        "rate_limited": 0,
        "cache_hits": 2000,
    }
    newest = {
        "version": 3,
        "operation": "write",
        "created_at": "2027-01-15T08:00:08.000+00:00",
        "age_seconds": 1.0,
        "parallelism": 2,
    }
    assert report.pop("bytes") > 0
    assert report == {
        "operator_id": "enrich",
        **newest,
        "max_parallelism": 16,
        "in_flight": 3,
        "in_flight_skew": report["in_flight_skew"],
        "rows": 100,
        "exact": True,
        "state_skew": report["state_skew"],
        "files": 6,
        "under_way": None,
        "epoch": {**newest, "resident": 2, "oldest_call_milliseconds": 1500},
        "epochs": 2,
        "span_seconds": 8.0,
        "epochs_per_minute": 15.0,
        "rows_per_second": 10.0,
        "outputs_per_second": 9.5,
        "calls_per_second": 10.375,
        "spent": {},
    }
    assert report["in_flight_skew"] >= 1
    assert report["state_skew"] >= 1


def test_top_tells_what_calls_have_cost(cli: Cli, store: SnapshotStore, time: Time) -> None:
    for _ in range(2):
        time.seconds += 4
        commit_epoch(store, 10, 2, spent_tokens=1200, spent_dollars=0.25)

    assert cli("top", store.uri, "--once", "--json").json["spent"] == {"tokens": 2400, "dollars": 0.5}
    lines = lines_of(cli("top", store.uri, "--once").out)
    assert [line for line in lines if line.startswith("spent")] == [
        "spent: dollars 0.5 1.8/min",
        "spent: tokens 2,400 8,470.6/min",
    ]


def lines_of(text: str) -> list[str]:
    return [" ".join(line.split()) for line in text.splitlines()]


def test_top_shows_the_same_to_people(cli: Cli, store: SnapshotStore) -> None:
    answer = cli("top", store.uri, "--once")

    assert (answer.code, answer.err) == (0, "")
    lines = lines_of(answer.out)
    for expected in (
        "enrich: epoch 3, 1.0 s ago",
        "parallelism 2 of at most 16",
        "resident 2 of 2 subtasks",
        "in flight 3",
        "oldest call 1.5 s",
        "rows by epoch ·██",
        "the newest epochs, over 8.0 s",
        "epochs 2 15.0/min",
        "rows 80 10.0/s",
        "calls 83 10.4/s",
        "timeouts 0 0.0/s",
        "dead letters 3 0.4/s",
        "cache hits 2,000 250.0/s",
    ):
        assert expected in lines
    # A limit that has done nothing is not worth a line.
    assert not any(line.startswith(("rate limited", "newest epoch")) for line in lines)
    assert [line.split()[:2] for line in lines[-2:]] == [["0", "0-7"], ["1", "8-15"]]


def test_a_commit_between_two_looks_is_seen(
    cli: Cli, store: SnapshotStore, time: Time, between: Callable[..., list[float]]
) -> None:
    def commit() -> None:
        time.seconds += 2
        commit_epoch(store, rows=100)

    pauses = between(commit, lambda: None)

    answer = cli("top", store.uri, "--json", "--interval", "1.5s")

    assert (answer.code, answer.err, pauses) == (0, "", [1.5] * 3)
    looks = [json.loads(line) for line in answer.out.splitlines()]
    assert [look["version"] for look in looks] == [3, 4, 4]
    assert [look["age_seconds"] for look in looks] == [1.0, 0.0, 0.0]
    assert [look["counts"]["rows"] for look in looks] == [80, 180, 180]


def test_views_follow_each_other_where_there_is_no_terminal(
    cli: Cli, store: SnapshotStore, time: Time, between: Callable[..., list[float]]
) -> None:
    pauses = between(lambda: setattr(time, "seconds", time.seconds + 60))

    answer = cli("top", store.uri)

    assert (answer.code, pauses) == (0, [2.0] * 2)
    titles = [line for line in answer.out.splitlines() if line.startswith("enrich:")]
    assert titles == ["enrich: epoch 3, 1.0 s ago", "enrich: epoch 3, 1 min 1 s ago"]
    assert "\x1b" not in answer.out


def test_an_operator_without_metrics_has_a_view(cli: Cli, tmp_path: Path, time: Time) -> None:
    store = SnapshotStore(tmp_path, "enrich")
    for _ in range(2):
        time.seconds += 3
        store.write(parts({"count": dict.fromkeys(words(9), 1)}))

    report = cli("top", store.uri, "--once", "--json").json
    lines = lines_of(cli("top", store.uri, "--once").out)

    assert (report["epoch"]["version"], report["epoch"]["resident"], report["rows"]) == (2, None, 9)
    assert (report["epochs_per_minute"], report["rows_per_second"]) == (20.0, None)
    assert set(report["counts"].values()) == {None}
    assert "epochs 1 20.0/min" in lines
    assert not any(line.startswith(("resident", "oldest call", "rows by epoch", "calls")) for line in lines)


def commit_deltas(store: SnapshotStore) -> None:
    """Commit an epoch that has changed one key of many."""
    backends = [restored(store.load(), index) for index in range(2)]
    key_group = key_group_of("key 1", 16)
    backends[key_group * 2 // 16].tables["count"].put(key_group, "key 1", 2)
    store.write([part(backend, index, 2) for index, backend in enumerate(backends)])


@pytest.mark.parametrize("operation", ["claim", "repartition", "compact"])
def test_a_version_that_is_no_epoch_is_named(cli: Cli, store: SnapshotStore, time: Time, operation: str) -> None:
    commit_deltas(store)
    # A delta may have rows for keys that its base has as well.
    assert any(line.startswith("state ~101 rows, ") for line in lines_of(cli("top", store.uri, "--once").out))
    time.seconds += 5
    {"claim": store.claim, "repartition": lambda: store.repartition(3), "compact": store.compact}[operation]()
    newest, epoch = store.newest_version(), store.newest_version() - 1

    report = cli("top", store.uri, "--once", "--json").json
    lines = lines_of(cli("top", store.uri, "--once").out)

    assert (report["version"], report["operation"], report["epoch"]["version"]) == (newest, operation, epoch)
    assert (report["epochs"], report["span_seconds"], report["epochs_per_minute"]) == (0, None, None)
    assert f"enrich: {operation}, version {newest}, 0.0 s ago" in lines
    assert any(line.startswith(f"newest epoch {epoch}, ") for line in lines)
    assert "epochs 0 -" in lines


@pytest.mark.parametrize(
    ("seconds", "words_"),
    [(-4.0, "3.0 s ahead of this machine's clock"), (3 * 3600, "3 h 0 min ago"), (3 * 86400, "3 d 0 h ago")],
)
def test_a_clock_may_be_behind_and_a_pipeline_idle(
    cli: Cli, store: SnapshotStore, time: Time, seconds: float, words_: str
) -> None:
    time.seconds += seconds

    assert cli("top", store.uri, "--once").out.splitlines()[0] == f"enrich: epoch 3, {words_}"
    report = cli("top", store.uri, "--once", "--json").json
    assert (report["age_seconds"], report["rows_per_second"]) == (seconds + 1, 10.0)


def test_a_time_that_cannot_be_read_is_shown_as_it_is(cli: Cli, store: SnapshotStore, monkeypatch: Any) -> None:
    monkeypatch.setattr(Time, "text", lambda self: "long ago")
    Time().rule(monkeypatch)
    store.claim()

    assert cli("top", store.uri, "--once").out.startswith("enrich: claim, version 4, committed at 'long ago'\n")
    assert cli("top", store.uri, "--once", "--json").json["age_seconds"] is None


def test_no_snapshot_is_exit_code_3(cli: Cli, tmp_path: Path) -> None:
    answer = cli("top", tmp_path / "nothing")

    assert (answer.code, answer.out) == (3, "")
    assert answer.err.startswith("error: no snapshot in ")


def test_a_folder_that_vanishes_ends_it(
    cli: Cli, store: SnapshotStore, tmp_path: Path, between: Callable[..., list[float]]
) -> None:
    between(lambda: (tmp_path / "enrich").rename(tmp_path / "moved"))

    answer = cli("top", store.uri, "--json")

    assert (answer.code, answer.out.count("\n")) == (3, 1)
    assert "there are snapshots in" in answer.err


def test_a_folder_that_may_only_be_read_is_shown(
    cli: Cli, store: SnapshotStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError

    for name in ("create", "write", "replace", "delete"):
        monkeypatch.setattr(LocalFolder, name, refuse)

    assert cli("top", store.uri, "--once").code == 0


@pytest.mark.parametrize("interval", ["2", "soon", "0s", "0.09s", "61m", "1d", "-1s", ""])
def test_an_interval_that_makes_no_sense_is_a_usage_error(cli: Cli, store: SnapshotStore, interval: str) -> None:
    answer = cli("top", store.uri, "--once", "--interval", interval)

    assert (answer.code, answer.out) == (2, "")
    assert "--interval" in answer.err


@pytest.mark.parametrize("interval", ["0.1s", "1h", "60m"])
def test_the_bounds_of_the_interval_are_allowed(cli: Cli, store: SnapshotStore, interval: str) -> None:
    assert cli("top", store.uri, "--once", "--interval", interval).code == 0


def of_children(*outputs: int) -> dict[str, int]:
    """Return what a cut counts of the child processes of a job."""
    counts = {"subtasks": 2, "in_flight": 100_000, "dead_letters": 1, "processor_milliseconds": 65_449}
    return {
        f"child_{number}_{name}": count
        for number, made in enumerate(outputs, 1)
        for name, count in (counts | {"pid": 4_000_000 + number, "outputs": made}).items()
    }


def test_each_process_of_a_job_has_a_row(cli: Cli, store: SnapshotStore, time: Time) -> None:
    for outputs in ((600_000, 30), (700_000, 0)):
        time.seconds += 4
        commit_epoch(store, **of_children(*outputs))

    children = cli("top", store.uri, "--once", "--json").json["children"]
    lines = lines_of(cli("top", store.uri, "--once").out)

    names = ["number", "pid", "subtasks", "in_flight", "outputs", "dead_letters", "processor_seconds"]
    assert [list(child) for child in children] == [names, names]
    assert [list(child.values()) for child in children] == [
        [1, 4_000_001, 2, 100_000, 1_300_000, 2, 130.898],
        [2, 4_000_002, 2, 100_000, 30, 2, 130.898],
    ]
    assert lines[lines.index("processes") + 1 :][:4] == [
        "in dead processor",
        "number pid flight outputs letters seconds",
        "1 4000001 100,000 1,300,000 2 130.9",
        "2 4000002 100,000 30 2 130.9",
    ]


def test_processes_that_the_newest_epoch_does_not_have_are_not_shown(cli: Cli, store: SnapshotStore) -> None:
    for outputs in ((5, 5, 5), (5,), ()):
        commit_epoch(store, **of_children(*outputs))
        children = cli("top", store.uri, "--once", "--json").json["children"]
        assert [child["number"] for child in children] == list(range(1, len(outputs) + 1))
    assert "processes" not in lines_of(cli("top", store.uri, "--once").out)


def view_of(store: SnapshotStore, parallelism: int, max_parallelism: int) -> TopReport:
    """Return a view with numbers as large as they come."""
    shares = tuple(
        SubtaskShare(
            index,
            range_of(index, parallelism, max_parallelism),
            Size(123_456_789 - index, 10**9, is_exact=False),
            Size(100_000 - 1000 * index, 0, is_exact=True),
        )
        for index in range(parallelism)
    )
    commit_epoch(store, **of_children(9_999_999, 9_999_999))
    activity = RecentVersions(store).activity(1_900_000_000.0)
    total = Size(987_654_321, 99_999_999_999, is_exact=False)
    return TopReport(dataclasses.replace(activity, subtasks=shares, state=total, max_parallelism=max_parallelism))


@pytest.mark.parametrize("parallelism", [1, 12, 40])
def test_a_view_fits_into_60_columns(store: SnapshotStore, parallelism: int) -> None:
    shown, view = {}, view_of(store, parallelism, 4096)
    for width in (60, 80, 200):
        console = Console(width=width, file=io.StringIO())
        console.print(live._compact(view))
        shown[width] = [line.rstrip() for line in console.file.getvalue().splitlines()]  # type: ignore[attr-defined]

    # Neither is a line too long, nor is one wrapped.
    assert shown[60] == shown[80] == shown[200]
    assert max(map(len, shown[60])) <= 60
    rows = [line for line in shown[60] if line.lstrip()[:1].isdigit()]
    assert len(rows) == min(parallelism, 16) + 2  # two processes


def test_the_fullest_of_many_subtasks_are_shown_in_order(store: SnapshotStore) -> None:
    *_, table = view_of(store, 40, 4096).tables()

    assert table.title == "the fullest 16 of 40 subtasks"
    assert [row[0] for row in table.rows] == list(range(16))


@pytest.fixture
def terminal() -> Iterator[tuple[int, int]]:
    ours, theirs = pty.openpty()
    yield ours, theirs
    os.close(ours)


def read_until(terminal: int, text: bytes) -> bytes:
    """Read what a program writes to a terminal until it has written something."""
    shown = b""
    while text not in shown and select.select([terminal], [], [], 60)[0]:
        try:
            shown += os.read(terminal, 65536)
        except OSError:  # the other end is closed
            break
    return shown


def test_on_a_terminal_ctrl_c_ends_it_and_leaves_the_last_view(store: SnapshotStore, terminal: tuple[int, int]) -> None:
    ours, theirs = terminal
    # A parent that ignores interrupts, as a shell's background job does, would have its child ignore them.
    heard = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    program = f"{heard}; from snapshots.cli import main; main()"
    environment = os.environ | {"PYTHONPATH": str(ROOT), "TERM": "xterm", "COLUMNS": "60", "LINES": "40"}
    command = [sys.executable, "-c", program, "top", store.uri, "--interval", "1h"]
    process = subprocess.Popen(command, stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)

    first = read_until(ours, b"subtasks")
    process.send_signal(signal.SIGINT)
    rest = read_until(ours, b"no such text")

    assert process.wait() == 0
    assert b"enrich: epoch 3" in first
    _, left, behind = rest.partition(b"\x1b[?1049l")
    assert left
    assert b"Traceback" not in rest
    assert behind.count(b"enrich: epoch 3") == 1


def under_way(time: Time, epoch: int, **changed: Any) -> EpochUnderWay:
    common = {"epoch": epoch, "at": time.seconds, "seconds": 12.0, "phase": "subtasks", "parallelism": 2, "hosts": 2}
    return EpochUnderWay(**(common | {"in_flight": 9} | changed))


def test_an_epoch_under_way_is_shown_as_long_as_its_note_is_fresh(cli: Cli, store: SnapshotStore, time: Time) -> None:
    uri = store.folder.uri
    note_under_way(store.folder, under_way(time, 4))
    assert "epoch 4 has been under way for 12 s and waits for calls: 9 in flight" in cli("top", uri, "--once").out
    assert cli("top", uri, "--once", "--json").json["under_way"]["in_flight"] == 9
    note_under_way(store.folder, under_way(time, 3))
    assert cli("top", uri, "--once", "--json").json["under_way"] is None, "it is committed"
    note_under_way(store.folder, under_way(time, 3, phase="sink"))
    assert "waits for its sink" in cli("top", uri, "--once").out
    note_under_way(store.folder, under_way(time, 4))
    time.seconds += FRESH_SECONDS
    assert "under way" not in cli("top", uri, "--once").out


def test_an_operator_is_shown_before_its_first_snapshot(cli: Cli, tmp_path: Path, time: Time) -> None:
    store = SnapshotStore(tmp_path, "enrich")
    assert cli("top", store.folder.uri, "--once").code == 3
    note_under_way(store.folder, under_way(time, 1))
    assert "enrich: no snapshot yet" in cli("top", store.folder.uri, "--once").out
    assert cli("top", store.folder.uri, "--once", "--json").json["under_way"]["epoch"] == 1
    store.folder.replace("under_way", b"{")
    assert cli("top", store.folder.uri, "--once").code == 3
