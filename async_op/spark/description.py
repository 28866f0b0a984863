"""What a pipeline says of itself: a line, a table, and an explanation of what it would do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from pyspark.sql import DataFrame, SparkSession

from async_op.epochs.adoption import check_declared, check_kind
from async_op.epochs.position import SourcePosition
from async_op.functions.plain import name_of
from async_op.spark.epoch.fleet import is_encrypted, unsuitable_settings
from async_op.spark.epoch.history import check_keys
from async_op.spark.errors import ModuleNotOnWorkers, UnpicklableFunction, UnsuitableWorkerPython
from async_op.spark.explanation import Explanation, Finding, Found, NewestSnapshot, Situation, findings_in
from async_op.spark.rows.schemas import check_input, is_repeatable
from async_op.spark.stage import Stage
from async_op.spark.task.pickling import check_pickles, names_bound_to_tasks
from async_op.spark.worker_python import check_workers, failure_in_a_task
from keygroups.arguments import seconds_of
from keygroups.errors import ConfigError, UnsupportedKey
from keygroups.ranges import range_of
from keygroups.representation import short
from keygroups.spark.session import is_connect, is_elsewhere
from snapshots import IncompatibleSnapshot, Snapshot
from snapshots.folder_hints import newest_or_empty
from snapshots.host_logs import logs_pattern

_SUBTASKS_SHOWN = 4


def explained(stages: Sequence[Stage], frame: DataFrame | None = None) -> Explanation:
    """Return what the operators of a pipeline would do with their next epoch, and what looks wrong, also of the input.

    It reads the newest snapshots, and the settings of the active Spark session if there is one.
    """
    session = SparkSession.getActiveSession()
    operators: dict[str, dict[str, str]] = {}
    findings: list[Finding] = []
    for stage in stages:
        operator_id, latest = stage.store.operator_id, newest_or_empty(stage.store.folder)
        it, why_not_resident = _situation(stage, latest, session)
        operators[operator_id] = _facts(stage, it, latest, why_not_resident, session)
        findings += [Finding(operator_id, problem, advice) for problem, advice in findings_in(it)]
    if frame is not None:
        check_input("df", frame)
        found = _findings_in_input(stages[0], frame)
        findings += [Finding(stages[0].store.operator_id, problem, advice) for problem, advice in found]
    return Explanation(operators, tuple(findings))


def _findings_in_input(stage: Stage, frame: DataFrame) -> Iterator[Found]:
    """Find what `start` refuses in the input, and rows that no repeated epoch gets again."""
    try:
        check_keys(newest_or_empty(stage.store.folder), stage.routing(frame.schema))
    except (ConfigError, UnsupportedKey, IncompatibleSnapshot) as refused:
        yield "start refuses the input", str(refused)
    if not is_repeatable(frame):
        yield (
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
        misfit=_misfit(stage, latest),
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


def _misfit(stage: Stage, latest: Snapshot | None) -> str | None:
    """Return why the newest snapshot does not fit the function, or the pipeline."""
    try:
        check_kind(latest, is_of_job=False)
        check_declared(latest, stage.settings.options)
    except IncompatibleSnapshot as refused:
        return str(refused)
    return None


def _newest(latest: Snapshot) -> NewestSnapshot:
    run = SourcePosition.of(latest).run
    return NewestSnapshot(
        parallelism=latest.parallelism,
        max_parallelism=latest.max_parallelism,
        hash=latest.manifest.hash,
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
        "key groups": f"{it.max_parallelism} by {options.hash}; {_ranges(it)}",
        "calls": _calls(it),
        "limits": "none" if options.resilience is None else repr(options.resilience),
        "operators": _place(why_not_resident, session),
        "snapshots": f"{it.uri}, {_state(latest)}",
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


def _ranges(it: Situation) -> str:
    ranges = [range_of(index, it.parallelism, it.max_parallelism) for index in range(it.parallelism)]
    shown = [f"{index}: {one.start}-{one.end}" for index, one in enumerate(ranges[:_SUBTASKS_SHOWN])]
    if len(ranges) > _SUBTASKS_SHOWN:
        shown += ["…"] if len(ranges) > _SUBTASKS_SHOWN + 1 else []
        shown.append(f"{it.parallelism - 1}: {ranges[-1].start}-{ranges[-1].end}")
    return ", ".join(shown)


def _calls(it: Situation) -> str:
    options = it.options
    timeout = "no timeout" if options.timeout is None else f"{options.timeout:g} s for all attempts"
    retry = "no retries" if options.retry is None else repr(options.retry)
    most = f"up to {options.capacity} in flight in each of {it.parallelism} subtasks"
    return f"{options.mode}, {most}, {timeout}, {retry}, on_error={options.on_error!r}"


def _place(why_not_resident: str | None, session: SparkSession | None) -> str:
    if why_not_resident is not None:
        return f"in Spark's tasks, opened for each epoch, because {why_not_resident}"
    place = "resident, each in a process beside Spark's workers"
    if session is not None and is_encrypted(session):
        place += "; reached from its own machine only, because Spark encrypts its traffic"
    return place


def _state(latest: Snapshot | None) -> str:
    if latest is None:
        return "none yet: the state begins empty"
    return f"version {latest.version} of {latest.manifest.created_at}, {latest.in_flight_count} in flight"


def _next_epoch(it: Situation, latest: Snapshot | None) -> str:
    barrier = it.barrier_timeout
    waits = "until all calls have returned" if barrier is None else f"at most {barrier:g} s for calls"
    version = 1 if latest is None else latest.version + 1
    first = "" if latest is None or not latest.undelivered() else f"gives version {latest.version} to the sink; "
    tasks = f"{it.parallelism} tasks, whatever adaptive execution is set to"
    return f"{first}runs {tasks}, waits {waits}, commits version {version}, then calls the sink"
