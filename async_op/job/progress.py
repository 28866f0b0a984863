"""What a job has done and what it is doing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from async_op.statistics import JobState, ResilienceStatistics
from keygroups.representation import html_facts, set_fields


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildProgress:
    """What a child process of a job has done, when the job heard of it last. Immutable.

    Attributes
    ----------
    number, pid : int
        Which child it is, counted from 1, and its process.
    subtasks : int
        How many subtasks of each step it has.
    in_flight : int
        Elements in its operators and on their way into them.
    outputs, dead_letters : int
        Outputs of the last step, and dead letters, in this run.
    processor_seconds : float
        Processor time that it has used.
    """

    number: int
    pid: int
    subtasks: int
    in_flight: int
    outputs: int
    dead_letters: int
    processor_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class JobProgress:
    """What a job has done since its start or newest restart, at one moment. Immutable.

    Attributes
    ----------
    job_id : str
        The id of the job.
    state : str
        "new", "opening", "running", "rescaling", "draining", "stopping", "restarting", "ended" or
        "failed".
    version : int
        The newest snapshot; 0 before the first.
    parallelism : int
        The number of subtasks of each step.
    records, outputs, dead_letters : int
        Elements that came from the source, outputs of the last step, and dead letters.
    in_flight : mapping of str to int
        For each step, the elements in its operators and on their way into them.
    limits : mapping of str to ResilienceStatistics
        For each step with `resilience`, what its subtasks together have spent, what is left of budgets, how many calls
        wait, and for how long calls have waited; since the start, the newest restart or the newest rescale.
    undelivered : int
        Committed epochs that the sink has not had.
    refused : int
        Outputs and dead letters that a sink with `on_error="skip"` or "dead_letter" has refused.
    partitions : int
        Partitions of the source that were found.
    lag : int or None
        Records of the source that were not read yet, as far as it knows without a request; None if it does not
        say. `KafkaSource` does.
    oldest_call_seconds : float
        For how long the oldest element without a result has been in its operator.
    back_pressured_seconds, undelivered_seconds : float
        Time lost: subtasks without room for calls, summed over them up to the newest snapshot, and the source that was
        paused because two epochs waited for the sink.
    mails : int
        Messages from other threads to the event loops of operators, up to the newest snapshot: results of functions on
        threads, and their use of state.
    mailbox_wait_seconds : float
        How long a sample of the mails has waited for the event loop.
    restarts : int
        How often `run` has restarted the job after a failure.
    newest_failure : str or None
        The failure that led to the newest restart.
    children : tuple of ChildProgress
        The child processes of a job with `processes`.
    """

    job_id: str
    state: JobState = "new"
    version: int = 0
    parallelism: int = 0
    records: int = 0
    outputs: int = 0
    dead_letters: int = 0
    in_flight: Mapping[str, int] = field(default_factory=dict)
    limits: Mapping[str, ResilienceStatistics] = field(default_factory=dict)
    undelivered: int = 0
    refused: int = 0
    partitions: int = 0
    lag: int | None = None
    oldest_call_seconds: float = 0.0
    back_pressured_seconds: float = 0.0
    undelivered_seconds: float = 0.0
    mails: int = 0
    mailbox_wait_seconds: float = 0.0
    restarts: int = 0
    newest_failure: str | None = None
    children: tuple[ChildProgress, ...] = ()

    def __repr__(self) -> str:
        waiting = sum(self.in_flight.values())
        return (
            f"<JobProgress {self.job_id}: {self.state}, version {self.version}, parallelism {self.parallelism}, "
            f"{self.records} in, {waiting} in flight, {self.outputs} out>"
        )

    def _repr_html_(self) -> str:
        return html_facts(f"job {self.job_id}", set_fields(self))
