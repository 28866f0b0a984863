"""The story that the demo tells, step by step."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import Any

from demo.baseline import Baseline, measure_baseline
from demo.crash import Runs, run_to_the_end, run_until_killed
from demo.data import load_flights, load_planes, load_weather, write_stream, write_tables
from demo.history import History, committed_at
from demo.latency import Latency
from demo.plot import Timeline, draw, read_samples
from demo.process import Child, ChildFailed
from demo.progress import Display, display
from demo.rescale import Rescale, repartition
from demo.service import lookup_service
from demo.summary import Summary
from demo.workspace import CAPACITY, Workspace

_MICRO_BATCHES_MIN = 8

_MICRO_BATCH_FLIGHTS_MAX = 5_000
"""Calls for so many take two seconds, about as long as an epoch: no more wait than the picture can show."""

_OLD_PARALLELISM, _NEW_PARALLELISM = 3, 2
"""Before the crash and, by the command line, after it."""

_RESCALES = {2: 4, 4: 3}
"""On the fly, in the run after the crash: after so many deliveries (the first repeats the newest epoch), so many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Outcome:
    """What both runs of the pipeline and the rescale between them came to."""

    begun: float
    killed: float
    ended: float
    version_at_crash: int
    rescale: Rescale


def play(workspace: Workspace, limit: int | None, latency: Latency) -> Summary:
    """Play the whole story.

    Parameters
    ----------
    workspace : Workspace
        The folder of the run.
    limit : int or None
        How many flights; None for all.
    latency : Latency
        How slow the service is.

    Returns
    -------
    Summary
        The figures, also where rows differ.

    Raises
    ------
    ChildFailed
        A process of the run ended with an error.
    """
    workspace.prepare()
    flights = load_flights(limit)
    micro_batches = max(_MICRO_BATCHES_MIN, len(flights) // _MICRO_BATCH_FLIGHTS_MAX)
    write_stream(flights, workspace.flights, micro_batches)
    write_tables(workspace.tables)
    with display(len(flights)) as shown, lookup_service() as service:
        service.load(load_weather(), load_planes())
        shown.say(f"Valkey serves weather and planes; {len(flights):,} flights wait in {micro_batches} files")
        baseline = measure_baseline(flights, service.socket, latency)
        shown.say(f"a blocking client, one call at a time: {baseline.seconds:.1f} s for {baseline.rows} flights")
        service.reset_calls()
        runs = Runs(workspace, service, latency, History(workspace), shown)
        outcome = _run_through_the_crash(runs, len(flights) // micro_batches)
        _draw(runs, outcome)
        comparison = _compare(workspace, shown)
        return _summarise(runs, outcome, baseline, comparison, micro_batches)


def _run_through_the_crash(runs: Runs, batch_rows: int) -> _Outcome:
    begun = time.time()
    runs.display.say(f"the pipeline starts with {_OLD_PARALLELISM} subtasks")
    killed = run_until_killed(runs, _OLD_PARALLELISM, batch_rows)
    # The kill may have come just after one more commit.
    runs.history.refresh()
    last = runs.history.snapshots[-1]
    runs.display.say(
        f"SIGKILL in the middle of a micro-batch; snapshot {last.version} holds {last.in_flight_count:,} in flight"
    )
    rescale = repartition(runs.workspace.operator, _NEW_PARALLELISM)
    runs.display.say(f"{rescale.command}: {rescale.milliseconds:.1f} ms")
    on_the_fly = " → ".join(map(str, (_NEW_PARALLELISM, *_RESCALES.values())))
    runs.display.say(f"started again where it was killed; this run rescales itself on the fly: {on_the_fly} subtasks")
    run_to_the_end(runs, _NEW_PARALLELISM, _RESCALES)
    ended = time.time()
    runs.display.say(f"the stream is at its end and nothing is in flight, {ended - begun:.1f} s after the first start")
    return _Outcome(begun=begun, killed=killed, ended=ended, version_at_crash=last.version, rescale=rescale)


def _draw(runs: Runs, outcome: _Outcome) -> None:
    epochs = runs.history.epochs
    rescaled = next(s for s in runs.history.snapshots if s.version == outcome.rescale.version)
    timeline = Timeline(
        begun=outcome.begun,
        killed=outcome.killed,
        rescaled=committed_at(rescaled),
        barriers=tuple((committed_at(epoch), epoch.in_flight_count) for epoch in epochs),
        parallelism=tuple((committed_at(epoch), epoch.parallelism) for epoch in epochs),
        capacity=CAPACITY,
    )
    draw(read_samples(runs.workspace.samples, outcome.begun), timeline, runs.workspace.plot)


def _compare(workspace: Workspace, shown: Display) -> dict[str, Any]:
    shown.say("comparing every row with a Spark SQL batch job")
    log = workspace.logs / "comparison.log"
    with Child("compare", [str(workspace.root)], log, workspace.scratch) as child:
        code = child.wait()
    if not workspace.comparison.exists():
        raise ChildFailed(f"the comparison ended with exit code {code} and no result", log)
    comparison: dict[str, Any] = json.loads(workspace.comparison.read_text())
    shown.say(
        f"{comparison['delivered']:,} rows of all epochs, before the crash, after it and at every parallelism, "
        f"compared: {comparison['different']:,} differences"
    )
    for example in comparison["examples"]:
        shown.say(f"  {example}")
    return comparison


def _summarise(
    runs: Runs, outcome: _Outcome, baseline: Baseline, comparison: dict[str, Any], micro_batches: int
) -> Summary:
    history = runs.history
    at_crash = next(s for s in history.snapshots if s.version == outcome.version_at_crash)
    after_crash = next(epoch for epoch in history.epochs if epoch.version > outcome.rescale.version).manifest.metrics
    return Summary(
        flights=comparison["expected"],
        rows_delivered=comparison["delivered"],
        rows_different=comparison["different"],
        micro_batches=micro_batches,
        calls_made=runs.service.calls(),
        reinvoked=history.total("reinvoked"),
        reinvoked_before_crash=history.total("reinvoked", until=at_crash.version),
        version_at_crash=at_crash.version,
        in_flight_at_crash=at_crash.in_flight_count,
        reinvoked_after_crash=after_crash["reinvoked"],
        snapshots=len(history.snapshots),
        snapshot_bytes=history.bytes_written(),
        old_parallelism=_OLD_PARALLELISM,
        new_parallelism=_NEW_PARALLELISM,
        parallelism_of_epochs=tuple(epoch.parallelism for epoch in history.epochs),
        rescale_milliseconds=outcome.rescale.milliseconds,
        pipeline_seconds=round(outcome.ended - outcome.begun, 1),
        baseline_rows=baseline.rows,
        baseline_sample_seconds=round(baseline.seconds, 2),
        baseline_seconds=round(baseline.extrapolated(comparison["expected"]), 1),
    )
