"""The metrics of a job, derived from its progress."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol, get_args

from async_op.metrics.families import Family, Kind, Sample
from async_op.statistics import JobState

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
    def children(self) -> Sequence[ChildFigures]:
        """The child processes."""
        ...


def job_families(jobs: Iterable[JobFigures]) -> list[Family]:
    """Return all metrics of the watched jobs; all counters but `restarts` start from zero with each run or restart."""
    found = list(jobs)
    families = [
        Family(_PREFIX + name, kind, text, _samples(found, name))
        for kind, texts in _FIELDS.items()
        for name, text in texts.items()
    ]
    in_flight = [
        Sample({"job": one.job_id, "step": step}, count) for one in found for step, count in one.in_flight.items()
    ]
    states = [
        Sample({"job": one.job_id, "state": state}, float(state == one.state))
        for one in found
        for state in get_args(JobState)
    ]
    families.append(Family(_PREFIX + "in_flight", "gauge", "Elements in a step and on their way.", tuple(in_flight)))
    families.append(Family(_PREFIX + "state", "gauge", "1 for the state of the job.", tuple(states)))
    families += [
        Family(f"{_PREFIX}child_{name}", kind, text, _samples_of_children(found, name))
        for kind, texts in _CHILD_FIELDS.items()
        for name, text in texts.items()
    ]
    return families


def _samples_of_children(jobs: Iterable[JobFigures], name: str) -> tuple[Sample, ...]:
    return tuple(
        Sample({"job": one.job_id, "child": str(child.number)}, getattr(child, name))
        for one in jobs
        for child in one.children
    )


def _samples(jobs: Iterable[JobFigures], name: str) -> tuple[Sample, ...]:
    values = ((one.job_id, getattr(one, name)) for one in jobs)
    return tuple(Sample({"job": job}, value) for job, value in values if value is not None)
