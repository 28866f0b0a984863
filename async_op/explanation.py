"""What a job or a pipeline would do, and what looks wrong with it: objects to look at, and checks that both have."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import TypeAlias

from async_op.functions.base import AsyncBatchFunction, BlockingFunction
from async_op.options import OperatorOptions
from async_op.resilience.rate_limit import RateLimit
from async_op.retry import ExponentialBackoffRetry, RetryPolicy, checked_delay
from keygroups.ranges import range_of
from keygroups.representation import counted, fields_repr, html_table, representation
from snapshots import Snapshot

Found: TypeAlias = tuple[str, str]
"""A problem and the next step."""

ATTEMPTS_MAX = 1000
"""Attempts that are looked at; a policy may allow any number."""

_UNEVEN_MIN = 1.5
"""How many times as many key groups one subtask may own as another before that is worth a word."""

_SUBTASKS_SHOWN = 4


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that looks wrong with a job or a pipeline.

    Attributes
    ----------
    operator_id : str
        The operator, the job, or the step of a job (as in "orders/enrich") that it is about.
    problem : str
        What it is, and what follows from it.
    advice : str
        The next step.
    is_refusal : bool
        Whether nothing would run because of it.
    """

    operator_id: str
    problem: str
    advice: str
    is_refusal: bool = False

    __repr__ = fields_repr

    def __str__(self) -> str:
        return f"{self.operator_id}: {self.problem}; {self.advice}"


@dataclass(frozen=True, slots=True, repr=False)
class Explanation:
    """What a job or a pipeline would do next, and what looks wrong. Print it, or show it in a notebook.

    It is a picture of one moment: the arguments, the newest snapshots, and what lies around them.

    Attributes
    ----------
    operators : mapping of str to mapping of str to str
        Facts by their names: for each operator of a chain by its id, or for a job and each of its steps.
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

    @property
    def is_refused(self) -> bool:
        """Whether nothing would run because of one of the findings."""
        return any(one.is_refusal for one in self.findings)

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
        return html_table("explanation", ("operator", "what", "how", "next step"), wrong + facts)


# Checks.


def retries_in_vain(options: OperatorOptions) -> Iterator[Found]:
    """Find attempts that cannot begin within the timeout."""
    timeout, retry = options.timeout, options.retry
    if timeout is None or retry is None or _is_drawn(retry):
        return
    made = attempts_within(retry, timeout)
    if made < min(retry.max_attempts, ATTEMPTS_MAX):
        problem = f"timeout={timeout:g} is for all attempts: of {retry.max_attempts}, {made} can begin in time"
        yield problem, "set a longer timeout, fewer attempts or shorter delays"


def attempts_within(policy: RetryPolicy, seconds: float) -> int:
    """Return how many attempts can begin within a time, if calls took no time. Delays count in full."""
    attempts = range(1, min(policy.max_attempts, ATTEMPTS_MAX))
    delays = (checked_delay(policy, attempt, policy.delay_after(attempt)) or 0.0 for attempt in attempts)
    return 1 + sum(waited < seconds for waited in accumulate(delays))


def unfit_limits(options: OperatorOptions, parallelism: int) -> Iterator[Found]:
    """Find threads and limits that do not fit the elements in flight, whose timeout runs before their calls begin."""
    function, limits = options.function, options.resilience
    if isinstance(function, BlockingFunction) and function.max_threads < options.capacity:
        yield (
            f"capacity={options.capacity}, but max_threads={function.max_threads}: the other elements in flight wait "
            "for a thread, and their timeout runs",
            f"set max_threads={options.capacity}, or a capacity of {function.max_threads}",
        )
    if limits is None or limits.cache is not None or limits.single_flight is not None:
        return  # not every element needs a call of its own
    at_once = function.max_batch_size if isinstance(function, AsyncBatchFunction) else 1
    most = None if limits.concurrency is None else limits.concurrency.maximum
    if most is not None:
        yield from _too_few_calls(options, most, at_once, parallelism)
    for limit in limits.rate_limits:
        if limit.cost is None and options.timeout is not None:
            yield from _too_slow(options, limit, options.timeout, at_once, parallelism)


def _too_few_calls(options: OperatorOptions, most: int, at_once: int, parallelism: int) -> Iterator[Found]:
    fitting = max(1, most // parallelism) * at_once
    if fitting < options.capacity:
        yield (
            f"capacity={options.capacity}{_in_each(parallelism)}, but no more than {counted(most, 'call')} may be "
            "under way: the other elements in flight wait, and their timeout runs",
            f"set a capacity of about {fitting}, or a greater maximum, which is the sum over all subtasks",
        )


def _too_slow(
    options: OperatorOptions, limit: RateLimit, timeout: float, at_once: int, parallelism: int
) -> Iterator[Found]:
    called = int((limit.whole_burst + limit.per_second * timeout) * at_once)
    if called < options.capacity * parallelism:
        yield (
            f"{limit.per_second:g} calls/s may begin, so at most {counted(called, 'element')} are called for within "
            f"the timeout of {timeout:g} s, and capacity={options.capacity}{_in_each(parallelism)}",
            f"set a capacity of at most {max(1, called // parallelism)}, or a longer timeout",
        )


def _in_each(parallelism: int) -> str:
    return f" in each of {parallelism} subtasks" if parallelism > 1 else ""


def uneven_ranges(parallelism: int, max_parallelism: int) -> Iterator[Found]:
    """Find subtasks that own many more key groups than others."""
    sizes = [len(range_of(index, parallelism, max_parallelism)) for index in range(parallelism)]
    if max(sizes) >= _UNEVEN_MIN * min(sizes):
        problem = f"of {max_parallelism} key groups some subtasks own {max(sizes)} and others {min(sizes)}"
        even = max(count for count in range(1, parallelism + 1) if max_parallelism % count == 0)
        yield f"{problem}, so their load differs as much", f"choose a parallelism that divides it, such as {even}"


def rescaled(what: str, before: int, parallelism: int, in_flight: int) -> Iterator[Found]:
    """Find another parallelism than the newest snapshot has; `what` begins with it."""
    if before != parallelism:
        made = f", and makes {in_flight} calls in flight again" if in_flight else ""
        yield (
            f"the newest snapshot has parallelism {before}: {what} rescales to {parallelism}{made}",
            f"nothing, if you mean it; else parallelism={before}",
        )


def _is_drawn(policy: RetryPolicy) -> bool:
    """Tell whether delays are drawn at random, so that nothing is sure about their sum."""
    return isinstance(policy, ExponentialBackoffRetry) and policy.has_jitter


# Facts.


def text_of_ranges(parallelism: int, max_parallelism: int) -> str:
    """Return which subtask owns which key groups."""
    ranges = [range_of(index, parallelism, max_parallelism) for index in range(parallelism)]
    shown = [f"{index}: {one.start}-{one.end}" for index, one in enumerate(ranges[:_SUBTASKS_SHOWN])]
    if len(ranges) > _SUBTASKS_SHOWN:
        shown += ["…"] if len(ranges) > _SUBTASKS_SHOWN + 1 else []
        shown.append(f"{parallelism - 1}: {ranges[-1].start}-{ranges[-1].end}")
    return ", ".join(shown)


def text_of_calls(options: OperatorOptions, parallelism: int) -> str:
    """Return how calls are made."""
    timeout = "no timeout" if options.timeout is None else f"{options.timeout:g} s for all attempts"
    retry = "no retries" if options.retry is None else repr(options.retry)
    most = f"up to {options.capacity} in flight{_in_each(parallelism)}"
    return f"{options.mode}, {most}, {timeout}, {retry}, on_error={options.on_error!r}"


def text_of_limits(options: OperatorOptions) -> str:
    """Return what limits calls beside the capacity."""
    return "none" if options.resilience is None else repr(options.resilience)


def text_of_newest(latest: Snapshot | None) -> str:
    """Return which snapshot is the newest."""
    if latest is None:
        return "none yet: the state begins empty"
    return f"version {latest.version} of {latest.manifest.created_at}, {latest.in_flight_count} in flight"
