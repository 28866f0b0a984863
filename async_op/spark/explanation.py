"""What a pipeline would do, and what looks wrong with it: objects to look at, and pure checks of what makes them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import accumulate

from async_op.functions.base import AsyncBatchFunction, BlockingFunction
from async_op.options import OperatorOptions
from async_op.retry import ExponentialBackoffRetry, RetryPolicy, checked_delay
from async_op.spark.autoscale import AutoscalePolicy
from keygroups.ranges import range_of
from keygroups.representation import fields_repr, html_table, representation

_ATTEMPTS_MAX = 1000
"""Attempts that are looked at; a policy may allow any number."""

_UNEVEN_MIN = 1.5
"""How many times as many key groups one subtask may own as another before that is worth a word."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that looks wrong with a pipeline.

    Attributes
    ----------
    operator_id : str
        The operator that it is about.
    problem : str
        What it is, and what follows from it.
    advice : str
        The next step.
    """

    operator_id: str
    problem: str
    advice: str

    __repr__ = fields_repr

    def __str__(self) -> str:
        return f"{self.operator_id}: {self.problem}; {self.advice}"


@dataclass(frozen=True, slots=True, repr=False)
class Explanation:
    """What a pipeline would do with its next epoch, and what looks wrong. Print it, or show it in a notebook.

    It is a picture of one moment: the arguments, the newest snapshots and the settings of the active Spark session.

    Attributes
    ----------
    operators : mapping of str to mapping of str to str
        Facts by their names, for each operator of the chain by its id.
    findings : tuple of Finding
        What looks wrong; empty if nothing does.

    Examples
    --------
    >>> print(pipeline.explain())  # doctest: +SKIP
    enrich
      function          Enrich, by key user
      key groups        128 by xxhash64; 0: 0-63, 1: 64-127
      …
    nothing looks wrong
    """

    operators: Mapping[str, Mapping[str, str]]
    findings: tuple[Finding, ...]

    def __repr__(self) -> str:
        return representation(self, {"operators": list(self.operators), "findings": len(self.findings)})

    def __str__(self) -> str:
        lines = []
        for operator_id, facts in self.operators.items():
            width = max(map(len, facts), default=0)
            lines += [operator_id, *(f"  {name:<{width}}  {value}" for name, value in facts.items())]
        wrong = [f"  - {one}" for one in self.findings]
        return "\n".join([*lines, *(["looks wrong:", *wrong] if wrong else ["nothing looks wrong"])])

    def _repr_html_(self) -> str:
        wrong = [(one.operator_id, "looks wrong", one.problem, one.advice) for one in self.findings]
        facts = [(name, *fact, "") for name, found in self.operators.items() for fact in found.items()]
        return html_table("pipeline", ("operator", "what", "how", "next step"), wrong + facts)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewestSnapshot:
    """What the newest snapshot says.

    Attributes
    ----------
    parallelism, max_parallelism : int
        The number of subtasks and of key groups that it was written with.
    hash : str
        The hash that maps keys to key groups.
    in_flight : int
        How many elements were in flight.
    unfinished_run : str or None
        A bounded run that has begun and not finished.
    calls, timeouts : int
        How many calls its epoch made, and how many elements timed out meanwhile.
    """

    parallelism: int
    max_parallelism: int
    hash: str
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


Found = tuple[str, str]
"""A problem and the next step."""


def findings_in(it: Situation) -> list[Found]:
    """Return what looks wrong, what keeps a pipeline from starting first."""
    return [found for check in _CHECKS for found in check(it)]


def attempts_within(policy: RetryPolicy, seconds: float) -> int:
    """Return how many attempts can begin within a time, if calls took no time. Delays count in full."""
    attempts = range(1, min(policy.max_attempts, _ATTEMPTS_MAX))
    delays = (checked_delay(policy, attempt, policy.delay_after(attempt)) or 0.0 for attempt in attempts)
    return 1 + sum(waited < seconds for waited in accumulate(delays))


def _start(it: Situation) -> Iterator[Found]:
    """Find what `start` refuses."""
    if it.refusal is not None:
        yield "start refuses the function or an option", it.refusal
    if it.misfit is not None:
        yield "start refuses the newest snapshot", it.misfit
    if it.newest is None:
        return
    for name, own, stored in (
        ("max_parallelism", it.max_parallelism, it.newest.max_parallelism),
        ("hash", it.options.hash, it.newest.hash),
    ):
        if own != stored:
            option = f"--{name.replace('_', '-')} {own}"
            rewrite = f"keygroups repartition {it.uri} --rewrite --parallelism {it.parallelism} {option}"
            yield (
                f"start refuses {name}={own!r}, because the snapshot has {stored!r}",
                f"pass {stored!r}, or: {rewrite}",
            )
    if it.newest.unfinished_run is not None:
        run = it.newest.unfinished_run
        yield f"start refuses, because the bounded run {run!r} has not finished", f"finish it: run(…, run_id={run!r})"


def _ends(it: Situation) -> Iterator[Found]:
    """Find calls that may hold up an epoch, and retries that never come."""
    timeout, retry = it.options.timeout, it.options.retry
    if timeout is None and it.barrier_timeout is None:
        yield "a call that never returns holds up its epoch for ever", "set timeout=, or barrier_timeout="
    if timeout is not None and retry is not None and not _is_drawn(retry):
        made = attempts_within(retry, timeout)
        if made < min(retry.max_attempts, _ATTEMPTS_MAX):
            problem = f"timeout={timeout:g} is for all attempts: of {retry.max_attempts}, {made} can begin in time"
            yield problem, "set a longer timeout, fewer attempts or shorter delays"


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
        sizes = [len(range_of(index, it.parallelism, it.max_parallelism)) for index in range(it.parallelism)]
        if max(sizes) >= _UNEVEN_MIN * min(sizes):
            problem = f"of {it.max_parallelism} key groups some subtasks own {max(sizes)} and others {min(sizes)}"
            even = max(count for count in range(1, it.parallelism + 1) if it.max_parallelism % count == 0)
            yield f"{problem}, so their load differs as much", f"choose a parallelism that divides it, such as {even}"
    if it.newest is not None and it.newest.parallelism != it.parallelism and it.is_asked:
        made = f", and makes {it.newest.in_flight} calls in flight again" if it.newest.in_flight else ""
        yield (
            f"the newest snapshot has parallelism {it.newest.parallelism}: the next epoch rescales to "
            f"{it.parallelism}{made}",
            f"nothing, if you mean it; else parallelism={it.newest.parallelism}",
        )


def _limits(it: Situation) -> Iterator[Found]:
    """Find limits that capacity does not fit."""
    options, function, limits = it.options, it.options.function, it.options.resilience
    at_once = function.max_batch_size if isinstance(function, AsyncBatchFunction) else 1
    if isinstance(function, BlockingFunction) and function.max_threads < options.capacity:
        yield (
            f"capacity={options.capacity}, but max_threads={function.max_threads}: the other elements in flight wait "
            "for a thread, and their timeout runs",
            f"set max_threads={options.capacity}, or a capacity of {function.max_threads}",
        )
    if limits is None or limits.cache is not None or limits.single_flight is not None:
        return  # not every element needs a call of its own
    most = None if limits.concurrency is None else limits.concurrency.maximum
    share = 0 if most is None else max(1, most // it.parallelism)
    if most is not None and share * at_once < options.capacity:
        yield (
            f"capacity={options.capacity}, but each of {it.parallelism} subtasks may have no more than {share} calls "
            "under way: the other elements in flight wait, and their timeout runs",
            f"set a capacity of about {share * at_once}, or a greater maximum, which is the sum over all subtasks",
        )
    for limit in limits.rate_limits:
        if limit.cost is None and options.timeout is not None:
            pace = limit.share(it.parallelism - 1, it.parallelism)
            called = int(((pace.burst or 1) + pace.per_second * options.timeout) * at_once)
            if called < options.capacity:
                yield (
                    f"each subtask may begin {pace.per_second:g} calls/s, so of {options.capacity} elements in flight "
                    f"at most {called} are called for within the timeout of {options.timeout:g} s",
                    f"set a capacity of at most {max(1, called)}, or a longer timeout",
                )


def _is_drawn(policy: RetryPolicy) -> bool:
    """Tell whether delays are drawn at random, so that nothing is sure about their sum."""
    return isinstance(policy, ExponentialBackoffRetry) and policy.has_jitter


_CHECKS = (_start, _ends, _timed_out, _carried_over, _session, _ranges, _limits)
