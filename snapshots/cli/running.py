"""``keygroups top``, ``logs`` and ``run``: what runs, what its functions print, and a job that is run here."""

from __future__ import annotations

import importlib
import json
import sys
import threading
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import typer

from keygroups.ttl import wall_time
from snapshots.cli.live import repeated
from snapshots.cli.options import AsJson, StorageOptions, Uri, open_store, seconds_of
from snapshots.cli.output import NotFound, Table, bar, sparkline
from snapshots.errors import SnapshotNotFound
from snapshots.format.epoch_under_way import EpochUnderWay, under_way_in
from snapshots.host_logs import logs_of, logs_pattern, tails_of
from snapshots.inspection import Activity, Commit, RecentVersions, Size, SubtaskShare
from snapshots.inspection.for_people import duration_text
from snapshots.store import SnapshotStore

_SECONDS_MIN, _SECONDS_MAX = 0.1, 3600.0
"""A shorter interval would ask a storage for nothing but that; a longer one is a job for a scheduler."""

_SUBTASKS_SHOWN_MAX = 16
_BAR_WIDTH = 6
_ALWAYS_SHOWN = {"rows", "outputs", "calls", "retries", "timeouts"}
"""Of what epochs count, what is shown even if it is 0."""

Interval = Annotated[str, typer.Option("--interval", metavar="DURATION", help="How often to update: 0.5s, 10s, 1m.")]
Once = Annotated[bool, typer.Option("--once", help="Show the current state once and exit.")]

pause = threading.Event().wait
"""Waits for so many seconds; a test does something else instead."""

Lines = Annotated[
    int, typer.Option("--lines", metavar="N", min=1, help="How many lines of each log to show, from its end.")
]

Target = Annotated[
    str, typer.Argument(metavar="MODULE:JOB", help="A module, and the name of the Job at its top level.")
]
Serve = Annotated[
    str | None,
    typer.Option("--serve", metavar="HOST:PORT", help="Answer probes, metrics and a live page there."),
]
Restart = Annotated[
    int | None,
    typer.Option("--restart", metavar="N", min=0, help="Restart after a failure, N times in a row; 0 for never."),
]
Processes = Annotated[
    str | None,
    typer.Option("--processes", metavar="N", help="Run the steps in N worker processes; auto for one per processor."),
]
Explain = Annotated[
    bool, typer.Option("--explain", help="Say what it would do and what looks wrong; exit with 1 if it would not run.")
]


def top(
    uri: Uri,
    interval: Interval = "2s",
    once: Once = False,
    as_json: AsJson = False,
    storage_option: StorageOptions = None,
) -> None:
    """Watch a running operator: its newest epochs, rates, elements in flight, and skew; Ctrl-C ends it."""
    seconds = seconds_of(interval, "--interval")
    if not _SECONDS_MIN <= seconds <= _SECONDS_MAX:
        raise typer.BadParameter(f"{interval!r} is not between 0.1s and 1h", param_hint="--interval")
    store = open_store(uri, storage_option)
    versions = RecentVersions(store)
    with repeated(as_json=as_json, once=once) as show, suppress(KeyboardInterrupt):
        show(_report(store, versions))
        while not once:
            pause(seconds)
            show(_report(store, versions))


def _report(store: SnapshotStore, versions: RecentVersions) -> TopReport | BeginningReport:
    now = wall_time() / 1000
    under_way = under_way_in(store.folder, now)
    try:
        return TopReport(versions.activity(now), under_way)
    except SnapshotNotFound:
        if under_way is None:
            raise
        return BeginningReport(store.operator_id, under_way)


@dataclass(frozen=True, slots=True)
class BeginningReport:
    """The report of ``keygroups top`` on an operator whose first epoch is under way."""

    operator_id: str
    under_way: EpochUnderWay

    def to_json(self) -> dict[str, Any]:
        """Return the report as data for JSON, in a stable form."""
        return {"operator_id": self.operator_id, "version": None, "under_way": asdict(self.under_way)}

    def tables(self) -> Iterable[Table]:
        """Return the report as tables for people."""
        yield Table(f"{self.operator_id}: no snapshot yet", (), (("under way", str(self.under_way)),))


@dataclass(frozen=True, slots=True)
class TopReport:
    """The report of ``keygroups top``."""

    activity: Activity
    under_way: EpochUnderWay | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the report as data for JSON, in a stable form."""
        activity, pace = self.activity, self.activity.pace
        return {
            "operator_id": activity.operator_id,
            **self._commit_json(activity.newest),
            "max_parallelism": activity.max_parallelism,
            "in_flight": activity.in_flight,
            "in_flight_skew": round(activity.in_flight_skew, 3),
            "rows": activity.state.rows,
            "bytes": activity.state.bytes,
            "exact": activity.state.is_exact,
            "state_skew": round(activity.state_skew, 3),
            "files": activity.files,
            "under_way": None if self._newer_under_way is None else asdict(self._newer_under_way),
            "epoch": None if activity.epoch is None else self._epoch_json(activity.epoch),
            "epochs": pace.epochs,
            "span_seconds": _rounded(pace.seconds),
            "epochs_per_minute": _rounded(pace.epochs_per_minute),
            "rows_per_second": _rounded(pace.per_second("rows")),
            "outputs_per_second": _rounded(pace.per_second("outputs")),
            "calls_per_second": _rounded(pace.per_second("calls")),
            "counts": pace.counts,
            "spent": pace.spent,
            "children": [asdict(child) for child in activity.children],
            "subtasks": [_share_json(share) for share in activity.subtasks],
            "recent": [
                {
                    "version": commit.version,
                    "operation": commit.operation,
                    "created_at": commit.created_at,
                    "rows": commit.count("rows"),
                    "outputs": commit.count("outputs"),
                    "calls": commit.count("calls"),
                }
                for commit in activity.recent
            ],
        }

    def _commit_json(self, commit: Commit) -> dict[str, Any]:
        return {
            "version": commit.version,
            "operation": commit.operation,
            "created_at": commit.created_at,
            "age_seconds": _rounded(commit.age(self.activity.now)),
            "parallelism": commit.parallelism,
        }

    def _epoch_json(self, epoch: Commit) -> dict[str, Any]:
        names = ("resident", "oldest_call_milliseconds")
        return self._commit_json(epoch) | {name: epoch.count(name) for name in names}

    def tables(self) -> Iterable[Table]:
        """Return the report as tables for people."""
        activity, pace = self.activity, self.activity.pace
        newest = activity.newest
        what = "epoch" if newest.is_epoch else f"{newest.operation}, version"
        yield Table(f"{activity.operator_id}: {what} {newest.version:,}, {self._ago(newest)}", (), tuple(self._facts()))
        span = "" if pace.seconds is None else f", over {duration_text(pace.seconds)}"
        yield Table(f"the newest epochs{span}", ("", "in all", "rate"), tuple(self._rates()))
        if activity.children:
            yield self._children()
        yield self._subtasks()

    def _facts(self) -> Iterable[tuple[str, object]]:
        activity, newest, epoch = self.activity, self.activity.newest, self.activity.epoch
        if self._newer_under_way is not None:
            yield "under way", str(self._newer_under_way)
        yield "parallelism", f"{newest.parallelism} of at most {activity.max_parallelism}"
        if epoch is not None and not newest.is_epoch:
            yield "newest epoch", f"{epoch.version:,}, {self._ago(epoch)}"
        if epoch is not None and (resident := epoch.count("resident")) is not None:
            yield "resident", f"{resident} of {epoch.parallelism} subtasks"
        yield "in flight", f"{activity.in_flight:,}"
        if epoch is not None and (oldest := epoch.count("oldest_call_milliseconds")):
            yield "oldest call", duration_text(oldest / 1000)
        yield "state", f"{_approximate(activity.state)} rows, {activity.state.bytes:,} bytes"
        yield "files", activity.files
        if len(activity.subtasks) > 1:
            yield "skew", f"{activity.in_flight_skew:.1f} in flight, {activity.state_skew:.1f} in state"
        if any(commit.count("rows") is not None for commit in activity.recent):
            yield "rows by epoch", sparkline([commit.count("rows") for commit in activity.recent])

    @property
    def _newer_under_way(self) -> EpochUnderWay | None:
        """The epoch under way, unless a version that it does not know was committed meanwhile."""
        found = self.under_way
        in_sink = found is not None and found.phase == "sink" and found.epoch == self.activity.newest.version
        return found if found is not None and (in_sink or found.epoch > self.activity.newest.version) else None

    def _rates(self) -> Iterable[tuple[str, float, str]]:
        pace = self.activity.pace
        yield "epochs", pace.epochs, _rate(pace.epochs_per_minute, "min")
        for name, count in pace.counts.items():
            if count or (count is not None and name in _ALWAYS_SHOWN):
                yield name.replace("_", " "), count, _rate(pace.per_second(name), "s")
        for unit, amount in pace.spent.items():
            per_minute = 60 * amount / pace.seconds if pace.seconds else None
            yield f"spent: {unit}", round(amount, 3), _rate(per_minute, "min")

    def _children(self) -> Table:
        # Long names have two lines, so that the table fits on a small screen; the next one shows the subtasks.
        return Table(
            "processes",
            ("number", "pid", "in\nflight", "outputs", "dead\nletters", "processor\nseconds"),
            tuple(
                (
                    *(child.number, str(child.pid), child.in_flight, child.outputs, child.dead_letters),
                    f"{child.processor_seconds:,.1f}",
                )
                for child in self.activity.children
            ),
        )

    def _subtasks(self) -> Table:
        activity = self.activity
        fullest = sorted(activity.subtasks, key=lambda share: (-share.in_flight.rows, -share.state.rows))
        shown = sorted(fullest[:_SUBTASKS_SHOWN_MAX], key=lambda share: share.index)
        of = f"the fullest {len(shown)} of {len(fullest)} subtasks" if len(shown) < len(fullest) else "subtasks"
        in_flight_max = max(share.in_flight.rows for share in fullest)
        rows_max = max(share.state.rows for share in fullest)
        return Table(
            of,
            ("subtask", "key groups", "in flight", "", "rows", ""),
            tuple(
                (
                    *(share.index, f"{share.key_groups.start}-{share.key_groups.end}"),
                    *(_approximate(share.in_flight), bar(share.in_flight.rows, in_flight_max, _BAR_WIDTH)),
                    *(_approximate(share.state), bar(share.state.rows, rows_max, _BAR_WIDTH)),
                )
                for share in shown
            ),
        )

    def _ago(self, commit: Commit) -> str:
        age = commit.age(self.activity.now)
        if age is None:
            return f"committed at {commit.created_at!r}"
        return f"{duration_text(age)} ago" if age >= 0 else f"{duration_text(-age)} ahead of this machine's clock"


def _share_json(share: SubtaskShare) -> dict[str, Any]:
    return {
        "subtask": share.index,
        "first": share.key_groups.start,
        "last": share.key_groups.end,
        "in_flight": share.in_flight.rows,
        "rows": share.state.rows,
        "bytes": share.state.bytes,
        "exact": share.state.is_exact and share.in_flight.is_exact,
    }


def _approximate(size: Size) -> int | str:
    return size.rows if size.is_exact else f"~{size.rows:,}"


def _rate(rate: float | None, unit: str) -> str:
    return "-" if rate is None else f"{rate:,.1f}/{unit}"


def _rounded(number: float | None) -> float | None:
    return None if number is None else round(number, 3)


def logs(uri: Uri, lines: Lines = 100, as_json: AsJson = False, storage_option: StorageOptions = None) -> None:
    """Show what the functions of a pipeline print and log: the logs of its hosts on this machine, newest last."""
    folder = open_store(uri, storage_option).uri
    found = {path: text.splitlines()[-lines:] for path, text in tails_of(logs_of(folder)).items()}
    if not found:
        reason = "nothing was printed, its operators run in Spark's tasks, or its hosts are on other machines"
        raise NotFound(f"this machine has no {logs_pattern(folder)}: {reason}")
    if as_json:
        sys.stdout.write(f"{json.dumps({'logs': [{'path': path, 'lines': last} for path, last in found.items()]})}\n")
        return
    for path, last in found.items():
        sys.stdout.write("\n".join([f"==> {path} <==", *last, ""]))


def run(
    target: Target,
    serve: Serve = None,
    restart: Restart = None,
    processes: Processes = None,
    explain: Explain = False,
) -> None:
    """Run a job to its end; SIGTERM or Ctrl-C stops it with a snapshot of what is in flight."""
    # By its name: this package is unaware of jobs, which are made of it.
    command = importlib.import_module("async_op.job.command")
    if explain:
        found = command.explain_job(target, processes=processes)
        typer.echo(found)
        raise typer.Exit(int(found.is_refused))
    command.run_job(target, serve=serve, max_restarts=restart, processes=processes)
