"""The metrics of a job, derived from its progress."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol, get_args

from async_op.metrics.families import Family, Kind, Labels, family_of, split_family
from async_op.metrics.limits import limit_families
from async_op.statistics import JobState, ResilienceStatistics

_PREFIX = "keygroups_job_"

_FIELDS: dict[Kind, dict[str, str]] = {
    "counter": {
        "records": "Elements that came from the source.",
        "outputs": "Outputs of the last step.",
        "dead_letters": "Dead letters.",
        "calls": "Calls made.",
        "retries": "Calls that were further attempts.",
        "timeouts": "Elements that timed out.",
        "skipped": "Elements that failed for good and were dropped.",
        "refused": "Outputs that a sink has refused.",
        "restarts": "Restarts after a failure.",
        "back_pressured_seconds": "Time in which subtasks had no room for calls.",
        "undelivered_seconds": "Time in which the source was paused because epochs waited for the sink.",
        "mails": "Results and calls that other threads handed to the event loop.",
        "mailbox_wait_seconds": "How long a sample of the mails waited for the event loop.",
    },
    "gauge": {
        "version": "The newest snapshot.",
        "parallelism": "The number of subtasks of each step.",
        "undelivered": "Committed epochs that the sink has not had.",
        "partitions": "Partitions of the source that were found.",
        "lag": "Records of the source that were not read yet, as far as it knows.",
        "oldest_call_seconds": "For how long the oldest element without a result has been in its operator.",
    },
}


_CHILD_FIELDS: dict[Kind, dict[str, str]] = {
    "counter": {
        "outputs": "Outputs of the last step that a child process has made.",
        "dead_letters": "Dead letters of a child process.",
        "processor_seconds": "Processor time of a child process.",
    },
    "gauge": {
        "in_flight": "Elements in a child process.",
        "subtasks": "Subtasks of each step that a child process has.",
    },
}


class ChildFigures(Protocol):
    """A `ChildProgress`; its other fields are read by their names."""

    @property
    def number(self) -> int:
        """The value of the label `child`."""
        ...


class JobFigures(Protocol):
    """A `JobProgress`; its other fields are read by their names."""

    @property
    def job_id(self) -> str:
        """The value of the label `job`."""
        ...

    @property
    def state(self) -> JobState:
        """What the job does."""
        ...

    @property
    def in_flight(self) -> Mapping[str, int]:
        """How many elements each step has."""
        ...

    @property
    def limits(self) -> Mapping[str, ResilienceStatistics]:
        """For each step with limits, what these have done."""
        ...

    @property
    def children(self) -> Sequence[ChildFigures]:
        """The child processes."""
        ...


def job_families(jobs: Iterable[JobFigures]) -> list[Family]:
    """Return all metrics of the watched jobs.

    All counters but `restarts` start from zero with each run or restart; counters of limits with each rescale, too.
    """
    found = [({"job": one.job_id}, one) for one in jobs]
    children = [({**job, "child": str(child.number)}, child) for job, one in found for child in one.children]
    limits = [({**job, "step": step}, done) for job, one in found for step, done in one.limits.items()]
    in_flight = "Elements in a step and on their way."
    return [
        *_families_of(_PREFIX, _FIELDS, found),
        split_family(f"{_PREFIX}in_flight", "gauge", in_flight, "step", lambda one: one.in_flight, found),
        split_family(f"{_PREFIX}state", "gauge", "1 for the state of the job.", "state", _states, found),
        *_families_of(f"{_PREFIX}child_", _CHILD_FIELDS, children),
        *limit_families(_PREFIX, limits),
    ]


def _families_of(
    prefix: str, fields: Mapping[Kind, Mapping[str, str]], found: Sequence[tuple[Labels, object]]
) -> list[Family]:
    kinds = [(kind, name, text) for kind, texts in fields.items() for name, text in texts.items()]
    return [family_of(prefix, name, kind, text, found) for kind, name, text in kinds]


def _states(job: JobFigures) -> dict[str, float]:
    return {state: float(state == job.state) for state in get_args(JobState)}
