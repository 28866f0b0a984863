"""What the newest versions tell of an operator: rates, ages and the share of each subtask."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Iterator
from itertools import pairwise

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from snapshots import SnapshotStore
from snapshots.inspection import Activity, Commit, Pace, shares_of
from snapshots.inspection.activity import COUNTED, SPAN_SECONDS_MAX
from tests.snapshot_kit import G, new_store, parts, record, words
from tests.snapshots.epochs import commit_epoch

NOW = 1_800_000_000.0


def at(seconds: float) -> str:
    return dt.datetime.fromtimestamp(seconds, dt.UTC).isoformat()


def commit(version: int, seconds: float, operation: str = "write", **metrics: float) -> Commit:
    return Commit(
        version=version,
        snapshot_id=f"id {version}",
        created_at=at(seconds),
        operation=operation,
        parallelism=2,
        metrics=metrics,
    )


@st.composite
def histories(draw: st.DrawFn) -> list[Commit]:
    """Versions of any kind, with clocks that may go back, stand still or be unreadable, and any counters."""
    found, seconds = [], NOW
    for version in range(1, draw(st.integers(0, 12)) + 1):
        seconds += draw(st.sampled_from([0.0, 0.001, 1.0, 2.5, 60.0, 400.0, SPAN_SECONDS_MAX, 1e5, -0.5, -1e5]))
        text = draw(st.sampled_from([at(seconds)] * 12 + ["", "yesterday", "9999-12-31T23:59:59-23:59"]))
        metrics = st.dictionaries(st.sampled_from(COUNTED), st.integers(-5, 10**6) | st.floats(-5, 10**6))
        found.append(
            Commit(
                version=version,
                snapshot_id=f"id {version}",
                created_at=text,
                operation=draw(st.sampled_from(["write"] * 6 + ["claim", "repartition", "compact", "rewrite"])),
                parallelism=2,
                metrics=draw(metrics),
            )
        )
    return found


def can_follow(run: list[Commit], version: Commit) -> bool:
    """Whether a run, whose versions are the newest first, may reach back to an older version."""
    times = [one.seconds for one in (*run, version)]
    if None in times or not all(one.is_epoch for one in run):
        return False
    ascending = all(older <= newer for newer, older in pairwise(times))  # type: ignore[operator]
    return ascending and (len(run) < 2 or times[0] - times[-1] <= SPAN_SECONDS_MAX)  # type: ignore[operator]


@given(histories())
def test_rates_are_those_of_the_longest_run_up_to_the_newest_version(history: list[Commit]) -> None:
    run: list[Commit] = []
    for version in reversed(history):
        if not can_follow(run, version):
            break
        run.append(version)
    *epochs, before = run or [None]

    pace = Pace.of(history)

    assert pace.epochs == len(epochs)
    assert pace.seconds == (epochs[0].seconds - before.seconds if epochs else None)  # type: ignore[operator,union-attr]
    for name in COUNTED:
        counts = [max(int(one.metrics[name]), 0) for one in epochs if one is not None and name in one.metrics]
        assert pace.counts[name] == (sum(counts) if counts else None)


@given(histories())
def test_no_rate_is_negative_and_none_is_made_of_no_time(history: list[Commit]) -> None:
    pace = Pace.of(history)

    rates = [pace.epochs_per_minute, *(pace.per_second(name) for name in COUNTED)]
    assert all(rate is None or 0 <= rate < float("inf") for rate in rates)
    assert (pace.epochs_per_minute is None) == (not pace.seconds)
    assert pace.seconds is None or pace.seconds >= 0


@given(histories(), st.randoms())
def test_the_order_in_which_versions_are_passed_does_not_matter(history: list[Commit], random: object) -> None:
    shuffled = list(history)
    random.shuffle(shuffled)  # type: ignore[attr-defined]

    assert Pace.of(shuffled) == Pace.of(history)


@given(histories(), st.integers(0, 10))
def test_older_versions_than_the_run_change_nothing(history: list[Commit], cut: int) -> None:
    pace = Pace.of(history)
    assume(pace.epochs + 1 <= len(history) - cut)

    assert Pace.of(history[cut:]) == pace


def test_of_no_version_there_is_no_rate() -> None:
    pace = Pace.of([])

    assert (pace.epochs, pace.seconds, pace.epochs_per_minute) == (0, None, None)
    assert set(pace.counts.values()) == {None}
    assert pace.per_second("rows") is None


def test_the_first_version_only_begins_the_time() -> None:
    pace = Pace.of([commit(1, NOW, rows=1000), commit(2, NOW + 2, rows=30), commit(3, NOW + 6, rows=90, retries=3)])

    assert (pace.epochs, pace.seconds, pace.epochs_per_minute) == (2, 6.0, 20.0)
    assert (pace.per_second("rows"), pace.per_second("retries")) == (20.0, 0.5)
    assert pace.per_second("calls") is None


def test_of_epochs_at_the_same_instant_there_is_no_rate() -> None:
    pace = Pace.of([commit(1, NOW, rows=1), commit(2, NOW, rows=2)])

    assert (pace.epochs, pace.seconds, pace.counts["rows"]) == (1, 0.0, 2)
    assert (pace.epochs_per_minute, pace.per_second("rows")) == (None, None)


@pytest.mark.parametrize("operation", ["claim", "repartition", "compact", "rewrite", "edit"])
def test_a_version_that_is_no_epoch_begins_a_run(operation: str) -> None:
    before = [commit(1, NOW - 60), commit(2, NOW - 50, rows=1000), commit(3, NOW, operation)]

    assert Pace.of(before).epochs == 0
    pace = Pace.of([*before, commit(4, NOW + 2, rows=10)])
    assert (pace.epochs, pace.per_second("rows")) == (1, 5.0)


def test_a_pause_between_epochs_is_not_averaged_in() -> None:
    before, after = [commit(1, NOW - 7200), commit(2, NOW - 7190, rows=5)], [commit(3, NOW, rows=1)]

    assert Pace.of([*before, *after]).seconds == 7190
    assert Pace.of([*before, *after, commit(4, NOW + 4, rows=8)]).per_second("rows") == 2.0


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Run the test far from Greenwich."""
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "Asia/Tokyo")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize(("text", "seconds"), [(at(NOW), NOW), ("2027-01-15T08:00:00", NOW), ("long ago", None)])
def test_an_age_may_be_negative_or_unknown(text: str, seconds: float | None) -> None:
    found = Commit(version=1, snapshot_id="", created_at=text, operation="write", parallelism=1)

    assert found.seconds == seconds
    assert found.age(NOW - 3) == (None if seconds is None else -3.0)
    assert found.age(NOW + 7200) == (None if seconds is None else 7200.0)


@pytest.fixture
def store() -> SnapshotStore:
    made = new_store()
    made.write(
        parts({"count": dict.fromkeys(words(100), 1)}, in_flight=[record(key, n) for n, key in enumerate("abc")])
    )
    return made


@pytest.mark.parametrize("parallelism", [1, 2, 3, 5, G])
def test_the_shares_of_the_subtasks_are_the_whole(store: SnapshotStore, parallelism: int) -> None:
    manifest = store.repartition(parallelism).manifest

    shares = shares_of(manifest)

    assert [share.index for share in shares] == list(range(parallelism))
    assert [group for share in shares for group in share.key_groups] == list(range(G))
    # An estimate is rounded for each subtask.
    assert sum(share.state.rows for share in shares) == pytest.approx(100, abs=parallelism / 2)
    assert sum(share.in_flight.rows for share in shares) == pytest.approx(3, abs=parallelism / 2)
    assert all(share.state.is_exact for share in shares) == (parallelism <= 2)


def test_a_version_is_described_as_it_was_written(store: SnapshotStore) -> None:
    commit_epoch(store, keys=40, in_flight=[record("a", 0)], rows=7, resident=2)
    newest = store.repartition(1).manifest
    commits = [Commit.of(store.load(version).manifest) for version in (3, 1, 2)]

    activity = Activity.of(newest, commits, NOW)

    assert (activity.newest.version, activity.newest.operation, activity.newest.parallelism) == (3, "repartition", 1)
    assert activity.epoch is not None
    assert (activity.epoch.version, activity.epoch.count("resident")) == (2, 2)
    assert [one.version for one in activity.recent] == [1, 2, 3]
    assert (activity.state.rows, activity.in_flight, activity.pace.epochs) == (40, 1, 0)
    assert (activity.in_flight_skew, activity.state_skew) == (1.0, 1.0)


def test_without_an_epoch_there_is_none() -> None:
    store = new_store()
    claimed = store.claim(parallelism=2).snapshot.manifest

    activity = Activity.of(claimed, [Commit.of(claimed)], NOW)

    assert activity.epoch is None
    assert (activity.files, activity.state.rows, activity.state_skew) == (0, 0, 1.0)
