"""What a pipeline says of itself: a line, a table, what it would do, and what looks wrong with that."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pyspark.sql import DataFrame, SparkSession

from async_op.connectors.conformance import letters_sink_of
from async_op.epochs.adoption import check_declared, check_fixed, check_kind
from async_op.epochs.looking import found_at_targets
from async_op.epochs.position import SourcePosition
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
from async_op.options import OperatorOptions
from async_op.spark.autoscale import AutoscalePolicy
from async_op.spark.epoch.delivery import IntoSink, Sink
from async_op.spark.epoch.fleet import is_encrypted, unsuitable_settings
from async_op.spark.epoch.history import check_keys
from async_op.spark.errors import ModuleNotOnWorkers, UnpicklableFunction, UnsuitableWorkerPython
from async_op.spark.rows.schemas import check_input, is_repeatable
from async_op.spark.stage import Stage
from async_op.spark.task.pickling import check_pickles, names_bound_to_tasks
from async_op.spark.worker_python import check_workers, failure_in_a_task
from keygroups.arguments import seconds_of
from keygroups.errors import ConfigError, UnsupportedKey
from keygroups.representation import short
from keygroups.spark.session import is_connect, is_elsewhere
from snapshots import IncompatibleSnapshot, Snapshot
from snapshots.folder_hints import newest_or_empty
from snapshots.host_logs import logs_pattern
from snapshots.lineage import check_lineage

# The first two are for the stub of this package, which can name its own modules only.
__all__ = ["Explanation", "Finding", "NewestSnapshot", "Situation", "doubts_in", "explained", "facts_of", "refusals_in"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NewestSnapshot:
    """What the newest snapshot says.

    Attributes
    ----------
    parallelism : int
        The number of subtasks that it was written with.
    in_flight : int
        How many elements were in flight.
    unfinished_run : str or None
        A bounded run that has begun and not finished.
    calls, timeouts : int
        How many calls its epoch made, and how many elements timed out meanwhile.
    """

    parallelism: int
    in_flight: int
    unfinished_run: str | None
    calls: int = 0
    timeouts: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """What one operator of a pipeline is about to run with.

    Attributes
    ----------
    options : OperatorOptions
        The options of the operator.
    barrier_timeout : float or None
        Seconds that an epoch waits for calls; None to wait for all.
    is_resident : bool
        Whether its operators live in hosts.
    parallelism, max_parallelism : int
        The number of subtasks of the next epoch, and of key groups.
    uri : str
        Where its snapshots are.
    is_asked : bool
        Whether the user has passed this parallelism.
    autoscale : AutoscalePolicy or None
        Decides on the parallelism.
    newest : NewestSnapshot or None
        The newest snapshot.
    slots : int or None
        How many tasks run at once in the session at most; None if that is not known.
    unsuitable : mapping of str to str
        Settings of the session that do not suit resident operators, with what follows.
    refusal : str or None
        Why the workers cannot run the function.
    misfit : str or None
        Why the newest snapshot does not fit the function.
    """

    options: OperatorOptions
    barrier_timeout: float | None
    is_resident: bool
    parallelism: int
    max_parallelism: int
    uri: str
    newest: NewestSnapshot | None = None
    slots: int | None = None
    unsuitable: Mapping[str, str] = field(default_factory=dict)
    refusal: str | None = None
    misfit: str | None = None
    is_asked: bool = True
    autoscale: AutoscalePolicy | None = None


def explained(stages: Sequence[Stage], frame: DataFrame | None = None, sink: Sink | None = None) -> Explanation:
    """Return what the operators of a pipeline would do with their next epoch, and what looks wrong.

    It reads the newest snapshots, and the settings of the active Spark session if there is one. It looks at the input
    and at the target of the sink, if they are given.
    """
    session = SparkSession.getActiveSession()
    operators: dict[str, dict[str, str]] = {}
    findings: list[Finding] = []
    for stage in stages:
        operator_id, latest = stage.store.operator_id, newest_or_empty(stage.store.folder)
        it, why_not_resident = _situation(stage, latest, session)
        operators[operator_id] = _facts(stage, it, latest, why_not_resident, session)
        findings += [Finding(operator_id, *one, is_refusal=True) for one in refusals_in(it)]
        findings += [Finding(operator_id, *one) for one in doubts_in(it)]
    if frame is not None:
        check_input("df", frame)
        findings += _findings_in_input(stages[0], frame)
    if sink is not None:
        last = stages[-1]
        operators[last.store.operator_id]["sink"] = short(sink)
        found = _found_at_target(last, sink)
        findings += [Finding(last.store.operator_id, *one, is_refusal=True) for one in found]
    return Explanation(operators, tuple(findings))


def _found_at_target(stage: Stage, sink: Sink) -> list[Found]:
    """Find what a sink would refuse, unless it is in use."""
    shipped = IntoSink(sink).shipped
    if shipped is None or (stage.query is not None and stage.query.isActive):
        return []
    letters = None if shipped.dead_letters is None else letters_sink_of(shipped.dead_letters)
    sinks = {"outputs": shipped, "dead_letters": letters}
    return [*found_at_targets(stage.store.folder, sinks, stage.namespace)]


def _findings_in_input(stage: Stage, frame: DataFrame) -> Iterator[Finding]:
    """Find what `start` refuses in the input, and rows that no repeated epoch gets again."""
    operator_id = stage.store.operator_id
    try:
        check_keys(newest_or_empty(stage.store.folder), stage.routing(frame.schema))
    except (ConfigError, UnsupportedKey, IncompatibleSnapshot) as refused:
        yield Finding(operator_id, "start refuses the input", str(refused), is_refusal=True)
    if not is_repeatable(frame):
        yield Finding(
            operator_id,
            "the input has columns that change when Spark reads it again, such as uuid() or rand(): after a failure an "
            "epoch runs over other rows, whose calls have other idempotency keys",
            "store such columns before (in a table or topic), or make them in the function from ctx.idempotency_key",
        )


def facts_of(stages: Sequence[Stage]) -> dict[str, object]:
    """Return what a line or a table says of a pipeline."""
    first = stages[0]
    options = first.settings.options
    return {
        "snapshots": first.store.uri,
        "function": name_of(options.function),
        "key_by": first.key_by,
        "parallelism": first.parallelism,
        "mode": options.mode,
        "capacity": options.capacity,
        "is_running": first.query is not None and first.query.isActive,
        **({"then": [stage.store.operator_id for stage in stages[1:]]} if len(stages) > 1 else {}),
    }


def _situation(stage: Stage, latest: Snapshot | None, session: SparkSession | None) -> tuple[Situation, str | None]:
    """Return what an operator is about to run with, and why it is not resident if it is not."""
    settings = stage.settings
    refusal, held = _of_function(stage, session)
    why_not = None if settings.is_resident else "resident=False"
    if why_not is None and held:
        why_not = f"the function holds {' and '.join(held)}"
    begins = stage.begins_with(latest, session)
    it = Situation(
        options=settings.options,
        barrier_timeout=settings.barrier_timeout,
        is_resident=why_not is None,
        parallelism=begins.parallelism,
        max_parallelism=stage.key_groups(begins.parallelism),
        is_asked=begins.is_asked,
        autoscale=stage.autoscale,
        uri=stage.store.uri,
        newest=None if latest is None else _newest(latest),
        refusal=refusal,
        misfit=_misfit(stage, latest, begins.parallelism),
    )
    if session is not None:
        it = replace(it, slots=_slots(session), unsuitable=unsuitable_settings(session))
    return it, why_not


def _of_function(stage: Stage, session: SparkSession | None) -> tuple[str | None, list[str]]:
    """Return why workers cannot run the function as the options say, and what in it binds it to tasks."""
    settings, function = stage.settings, stage.settings.options.function
    try:
        check_pickles(settings.options, settings.wait_strategies)
        if session is not None:
            check_workers(session, settings)
    except (ConfigError, UnpicklableFunction, UnsuitableWorkerPython, ModuleNotOnWorkers) as refused:
        return str(refused), []
    failure = failure_in_a_task(session, settings) if session is not None and is_elsewhere(session) else None
    return failure, names_bound_to_tasks(function)


def _misfit(stage: Stage, latest: Snapshot | None, parallelism: int) -> str | None:
    """Return why the newest snapshot does not fit the function, or the pipeline."""
    options, key_groups = stage.settings.options, stage.key_groups(parallelism)
    try:
        check_kind(latest, is_of_job=False)
        check_fixed(latest, max_parallelism=key_groups, hash=options.hash, parallelism=parallelism)
        check_declared(latest, options)
        check_lineage(None if latest is None else latest.manifest, stage.namespace)
    except IncompatibleSnapshot as refused:
        return str(refused)
    return None


def _newest(latest: Snapshot) -> NewestSnapshot:
    run = SourcePosition.of(latest).run
    return NewestSnapshot(
        parallelism=latest.parallelism,
        in_flight=latest.in_flight_count,
        unfinished_run=None if run is None else run.run_id,
        calls=int(latest.manifest.metrics.get("calls", 0)),
        timeouts=int(latest.manifest.metrics.get("timeouts", 0)),
    )


def _slots(session: SparkSession) -> int | None:
    """Return how many tasks run at once at most, with the executors that there are; None if Spark does not say."""
    if is_connect(session):
        return None
    settings = session.sparkContext.getConf()
    is_set = settings.contains("spark.default.parallelism")
    if is_set or settings.get("spark.dynamicAllocation.enabled", "false") == "true":
        return None
    return max(1, session.sparkContext.defaultParallelism // int(settings.get("spark.task.cpus", "1")))


def _facts(
    stage: Stage, it: Situation, latest: Snapshot | None, why_not_resident: str | None, session: SparkSession | None
) -> dict[str, str]:
    options = it.options
    keys = f"by key {', '.join(stage.key_by)}" if stage.key_by else "without keys, distributed by a hash of the row"
    facts = {
        "function": f"{name_of(options.function)}, {keys}",
        "parallelism": _parallelism(stage, latest, session),
        "key groups": f"{it.max_parallelism} by {options.hash}; {text_of_ranges(it.parallelism, it.max_parallelism)}",
        "calls": text_of_calls(options, it.parallelism),
        "limits": text_of_limits(options),
        "operators": _place(why_not_resident, session),
        "snapshots": f"{it.uri}, {text_of_newest(latest)}",
        "next epoch": _next_epoch(it, latest),
    }
    if why_not_resident is None:
        facts["logs"] = f"{logs_pattern(it.uri)}, on the machine of each host: keygroups logs {it.uri}"
    if stage.sink is not None:
        facts["sink"] = short(stage.sink)
    return facts if stage.key_by else facts | {"key groups": f"{it.max_parallelism}, for {it.parallelism} subtasks"}


def _parallelism(stage: Stage, latest: Snapshot | None, session: SparkSession | None) -> str:
    found, policy = stage.begins_with(latest, session), stage.autoscale
    text = f"{found.parallelism}, {found.reason}"
    if policy is None:
        return text
    says = "would keep" if policy.dry_run else "keeps"
    target = seconds_of(policy.target_batch_duration)
    return f"{text}; the autoscaler {says} it between {policy.min} and {policy.max}, for epochs of {target:g} s"


def _place(why_not_resident: str | None, session: SparkSession | None) -> str:
    if why_not_resident is not None:
        return f"in Spark's tasks, opened for each epoch, because {why_not_resident}"
    place = "resident, each in a process beside Spark's workers"
    if session is not None and is_encrypted(session):
        place += "; reached from its own machine only, because Spark encrypts its traffic"
    return place


def _next_epoch(it: Situation, latest: Snapshot | None) -> str:
    barrier = it.barrier_timeout
    waits = "until all calls have returned" if barrier is None else f"at most {barrier:g} s for calls"
    version = 1 if latest is None else latest.version + 1
    first = "" if latest is None or not latest.undelivered() else f"gives version {latest.version} to the sink; "
    tasks = f"{it.parallelism} tasks, whatever adaptive execution is set to"
    return f"{first}runs {tasks}, waits {waits}, commits version {version}, then calls the sink"


# What looks wrong: pure checks of a situation.


def refusals_in(it: Situation) -> list[Found]:
    """Return what keeps a pipeline from starting."""
    return [*_start(it)]


def doubts_in(it: Situation) -> list[Found]:
    """Return what looks wrong beside that."""
    return [found for check in _DOUBTS for found in check(it)]


def _start(it: Situation) -> Iterator[Found]:
    """Find what `start` refuses."""
    if it.refusal is not None:
        yield "start refuses the function or an option", it.refusal
    if it.misfit is not None:
        yield "start refuses the newest snapshot", it.misfit
    if it.newest is not None and it.newest.unfinished_run is not None:
        run = it.newest.unfinished_run
        yield f"start refuses, because the bounded run {run!r} has not finished", f"finish it: run(…, run_id={run!r})"


def _ends(it: Situation) -> Iterator[Found]:
    """Find calls that may hold up an epoch, and retries that never come."""
    if it.options.timeout is None and it.barrier_timeout is None:
        yield "a call that never returns holds up its epoch for ever", "set timeout=, or barrier_timeout="
    yield from retries_in_vain(it.options)


def _timed_out(it: Situation) -> Iterator[Found]:
    """Find a timeout that is shorter than calls take, as the newest epoch has met it."""
    if it.newest is not None and it.newest.timeouts and it.options.timeout is not None:
        yield (
            f"in the newest epoch {it.newest.timeouts} elements timed out, while {it.newest.calls} calls were made",
            f"if calls take longer than timeout={it.options.timeout:g}, set a longer one; if they wait for the "
            "service, a smaller capacity",
        )


def _carried_over(it: Situation) -> Iterator[Found]:
    """Find calls that are made twice, and epochs that wait for them."""
    barrier, timeout = it.barrier_timeout, it.options.timeout
    if it.is_resident or barrier is None or (timeout is not None and timeout <= barrier):
        return
    longest = "without a timeout" if timeout is None else f"of up to {timeout:g} s"
    yield (
        f"operators run in tasks, and calls {longest} may outlast barrier_timeout={barrier:g}: those are made again, "
        "and the next epoch waits for them as long as they take",
        "set a longer barrier_timeout, or let operators be resident",
    )


def _session(it: Situation) -> Iterator[Found]:
    """Find what does not suit the session."""
    if it.slots is not None and it.parallelism > it.slots:
        waves = -(-it.parallelism // it.slots)
        each = "until their calls have returned" if it.barrier_timeout is None else f"up to {it.barrier_timeout:g} s"
        yield (
            f"{it.parallelism} subtasks share {it.slots} slots, so they run in {waves} waves that each wait {each}",
            f"lower the parallelism to {it.slots}, or give Spark more cores",
        )
    if it.slots is not None and it.autoscale is not None and it.autoscale.max > it.slots >= it.parallelism:
        yield (
            f"the autoscaler may choose up to {it.autoscale.max} subtasks, and the session has {it.slots} slots",
            f"set max={it.slots}, or give Spark more cores",
        )
    if it.is_resident:
        for name, consequence in it.unsuitable.items():
            yield f"{name} is on, which {consequence}", "switch it off for this application, or accept that"


def _ranges(it: Situation) -> Iterator[Found]:
    """Find subtasks that own many more key groups than others, and a rescale."""
    if it.options.key_by is not None:
        yield from uneven_ranges(it.parallelism, it.max_parallelism)
    if it.newest is not None and it.is_asked:
        yield from rescaled("the next epoch", it.newest.parallelism, it.parallelism, it.newest.in_flight)


def _limits(it: Situation) -> Iterator[Found]:
    """Find limits that capacity does not fit."""
    yield from unfit_limits(it.options, it.parallelism)


_DOUBTS = (_ends, _timed_out, _carried_over, _session, _ranges, _limits)
