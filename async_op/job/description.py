"""What a job says of its next run, before it has claimed anything."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from async_op.connectors.conformance import closed, to_await
from async_op.connectors.sink import Sink
from async_op.connectors.source import Source
from async_op.epochs.looking import found_at_targets
from async_op.explanation import (
    Explanation,
    Finding,
    Found,
    rescaled,
    retries_in_vain,
    text_of_calls,
    text_of_limits,
    text_of_newest,
    text_of_ranges,
    uneven_ranges,
    unfit_limits,
)
from async_op.functions.plain import name_of
from async_op.job.adapters import IterableSource
from async_op.job.positions import Positions
from async_op.job.reading import listed
from async_op.job.step import Step
from async_op.job.waiting import connector
from async_op.operator.key_columns import columns_of
from async_op.options import OperatorOptions
from async_op.shared_objects import Use
from async_op.threads.own_thread import on_own_thread
from keygroups.representation import counted, short
from keygroups.safe_text import described
from snapshots import Snapshot, SnapshotStore


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSituation:
    """What a job is about to run with.

    Attributes
    ----------
    store : SnapshotStore
        Its snapshots.
    latest : Snapshot or None
        The newest of them.
    undelivered : int
        How many of its epochs the sink is not known to have had.
    misfit : str or None
        Why it does not fit the job.
    source, sink, dead_letters : Source, Sink, Sink or None
        Where elements come from and go to.
    steps : mapping of str to Step
        The steps by their names, in order.
    hash : str
        The hash that maps a key to its key group.
    parallelism, max_parallelism : int
        The number of subtasks and of key groups of the next run.
    is_asked : bool
        Whether the user has passed it.
    processes : int or None
        How many worker processes the steps run in; None for the event loop of the job.
    positions : Positions
        Knows no partition yet.
    namespace : str or None
        The idempotency namespace that the user has chosen.
    """

    store: SnapshotStore
    latest: Snapshot | None
    undelivered: int
    misfit: str | None
    source: Source[object]
    sink: Sink[object]
    dead_letters: Sink[object] | None
    steps: Mapping[str, Step]
    hash: str
    parallelism: int
    max_parallelism: int
    is_asked: bool
    processes: int | None
    positions: Positions
    namespace: str | None

    @property
    def has_enough_key_groups(self) -> bool:
        """Whether each subtask owns some."""
        return self.parallelism <= self.max_parallelism

    @property
    def options(self) -> dict[str, OperatorOptions]:
        """The options of each step."""
        return {name: step.options(self.hash, lambda _: None) for name, step in self.steps.items()}


async def explained(it: JobSituation, *, looks_around: bool) -> Explanation:
    """Return what a job would do, and what looks wrong.

    Parameters
    ----------
    it : JobSituation
        What it is about to run with.
    looks_around : bool
        Whether to ask the source for its partitions, and the sinks for their targets: not while a run uses them.
    """
    job_id = it.store.operator_id
    refusals = [] if it.misfit is None else [("run refuses the newest snapshot", it.misfit)]
    source = short(it.source)
    if looks_around and not refusals:
        sinks = {"outputs": it.sink, "dead_letters": it.dead_letters}
        refusals += await on_own_thread(lambda: [*found_at_targets(it.store.folder, sinks, it.namespace)])
        if not (isinstance(it.source, IterableSource) and it.source.is_once):  # its elements are for the run
            try:
                source += f": {await _partitions(it)}"
            except Exception as error:  # noqa: BLE001 - told: whatever it is, a run would meet it
                refusals.append((f"{source} cannot be read", described(error)))
    findings = [Finding(job_id, *one, is_refusal=True) for one in refusals]
    findings += [Finding(job_id, *one) for one in _doubts(it)]
    operators = {job_id: _facts(it, source)}
    for name, options in it.options.items():
        own_id = f"{job_id}/{name}"
        operators[own_id] = _facts_of_step(it, name, options)
        doubts = (*retries_in_vain(options), *unfit_limits(options, it.parallelism))
        findings += [Finding(own_id, *one) for one in doubts]
    return Explanation(operators, tuple(findings))


def _doubts(it: JobSituation) -> Iterator[Found]:
    """Find a rescale, and keys that are dealt unevenly."""
    if it.latest is not None and it.is_asked:
        yield from rescaled("the next run", it.latest.parallelism, it.parallelism, 0)
    if it.has_enough_key_groups and any(step.key_by is not None for step in it.steps.values()):
        yield from uneven_ranges(it.parallelism, it.max_parallelism)


async def _partitions(it: JobSituation) -> str:
    """Return how many partitions the source has; raises what a run would raise for them."""
    await on_own_thread(it.positions.restore, it.latest, it.parallelism)
    known = it.positions.known()
    looking = connector(f"looking at {type(it.source).__name__}")
    with looking, Use(it.source) as source:  # a run of another job may have the object
        await to_await(source, "open", source.open())
        try:
            if known:
                await to_await(source, "restore", source.restore(known))
            found = await listed(source)
        finally:
            await closed(source)
    new = sum(name not in known for name in found)
    return f"{counted(len(found), 'partition')}{f', {new} of them new' if known and new else ''}"


def _facts(it: JobSituation, source: str) -> dict[str, str]:
    letters = {} if it.dead_letters is None else {"dead letters": short(it.dead_letters)}
    processes = {} if it.processes is None else {"processes": str(it.processes)}
    ranges = f"; {text_of_ranges(it.parallelism, it.max_parallelism)}" if it.has_enough_key_groups else ""
    return {
        "source": source,
        "sink": short(it.sink),
        **letters,
        "snapshots": f"{it.store.uri}, {text_of_newest(it.latest)}",
        "parallelism": f"{it.parallelism}, {_reason(it)}",
        **processes,
        "key groups": f"{it.max_parallelism} by {it.hash}{ranges}",
        "next run": _next_run(it.latest, it.undelivered),
    }


def _facts_of_step(it: JobSituation, name: str, options: OperatorOptions) -> dict[str, str]:
    key_by = it.steps[name].key_by
    columns = columns_of(key_by)
    keys = "without keys" if key_by is None else f"by key {', '.join(columns) if columns else short(key_by)}"
    return {
        "function": f"{name_of(options.function)}, {keys}",
        "calls": text_of_calls(options, it.parallelism),
        "limits": text_of_limits(options),
    }


def _reason(it: JobSituation) -> str:
    if it.is_asked:
        return "as passed"
    return "the default" if it.latest is None else "as in the newest snapshot"


def _next_run(latest: Snapshot | None, undelivered: int) -> str:
    if latest is None:
        return "begins with nothing"
    what = [f"continues from version {latest.version}"]
    if undelivered:
        what.append(f"gives {counted(undelivered, 'epoch')} to the sink")
    if latest.in_flight_count:
        what.append(f"makes {counted(latest.in_flight_count, 'call')} in flight again")
    return ", ".join(what)
