"""What a job has done and what it is doing, and the line on a terminal or in a notebook that shows it."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from time import monotonic
from typing import TypeAlias

from async_op.statistics import JobState, ResilienceStatistics
from async_op.threads.own_thread import on_own_thread
from keygroups.context_managers import asynccontextmanager, contextmanager
from keygroups.errors import PackageNotInstalled
from keygroups.representation import html_facts, set_fields

REFRESH_SECONDS = 0.5

Show: TypeAlias = Callable[[str], None]
"""Puts a new text in the place of the one before."""


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
    calls, retries, timeouts, skipped : int
        Calls made; calls that were further attempts; elements that timed out; elements that failed for good and were
        dropped by a step with `on_error="skip"`. All steps together, up to the newest snapshot.
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
    calls: int = 0
    retries: int = 0
    timeouts: int = 0
    skipped: int = 0
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


@asynccontextmanager
async def shown(progress: Callable[[], JobProgress]) -> AsyncIterator[None]:
    """Show the progress of a job while the block runs; where it cannot move, only its end.

    Parameters
    ----------
    progress : callable
        Returns the progress of the job.

    Raises
    ------
    PackageNotInstalled
        This is no notebook, and rich is missing.
    """
    speed = Speed()
    # The event loop's own thread draws: another one could show a job that has ended.
    with await _place(line_of(progress(), None)) as show:

        async def draw() -> None:
            while True:
                newest = progress()
                show(line_of(newest, speed.of(newest.outputs)))
                await asyncio.sleep(REFRESH_SECONDS)

        drawing = asyncio.ensure_future(draw())
        try:
            yield
        finally:
            drawing.cancel()
            await asyncio.gather(drawing, return_exceptions=True)  # no job fails because its line cannot be drawn
            show(line_of(progress(), None))


async def _place(first: str) -> AbstractContextManager[Show]:
    if _is_in_notebook():
        return nullcontext(_output_of_cell(first))
    await on_own_thread(_load)
    return _line_on_terminal()


def _is_in_notebook() -> bool:
    """Return whether a Jupyter kernel runs this process; IPython on a terminal has a shell, but no kernel."""
    ipython = sys.modules.get("IPython")  # a kernel has imported it
    return getattr(ipython and ipython.get_ipython(), "kernel", None) is not None


def _output_of_cell(first: str) -> Show:
    """Rich would want ipywidgets here."""
    from IPython.display import display

    handle = display({"text/plain": first}, raw=True, display_id=True)  # type: ignore[no-untyped-call]
    return lambda line: handle.update({"text/plain": line}, raw=True)


@contextmanager
def _line_on_terminal() -> Iterator[Show]:
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    with Live(console=Console(stderr=True), auto_refresh=False, redirect_stdout=False, redirect_stderr=False) as live:
        yield lambda line: live.update(Text(line), refresh=True)


def _load() -> None:
    """Import rich, which reads many files."""
    try:
        import rich.live  # noqa: F401
    except ImportError as error:
        raise PackageNotInstalled("rich", "Job.run(show_progress=True)") from error


class Speed:
    """Outputs a second since it was last asked, by the monotonic clock."""

    def __init__(self) -> None:
        self._since = monotonic()
        self._outputs = 0

    def of(self, outputs: int) -> float:
        """Return the speed that leads to a number of outputs."""
        now = monotonic()
        seconds, made = now - self._since, outputs - self._outputs
        self._since, self._outputs = now, outputs
        return max(0, made) / seconds if seconds > 0 else 0.0


def line_of(progress: JobProgress, outputs_per_second: float | None) -> str:
    """Return the line for a moment of a job, and one for each of its child processes.

    Examples
    --------
    >>> line_of(JobProgress(job_id="prices", state="running", version=3, records=1200, outputs=1100), 250.0)
    'prices: running, 1,200 in, 0 in flight, 1,100 out (250/s), snapshot 3'
    >>> child = ChildProgress(
    ...     number=1, pid=7, subtasks=2, in_flight=5, outputs=9, dead_letters=0, processor_seconds=2.5
    ... )
    >>> print(line_of(JobProgress(job_id="prices", children=(child,)), None))
    prices: new, 0 in, 0 in flight, 0 out, snapshot 0
      process 1: 5 in flight, 9 out, 2.5 s of processor time
    """
    speed = "" if outputs_per_second is None else f" ({outputs_per_second:,.0f}/s)"
    letters = f", {progress.dead_letters:,} dead letters" if progress.dead_letters else ""
    restarts = f", {progress.restarts:,} restarts" if progress.restarts else ""
    in_flight = sum(progress.in_flight.values())
    line = (
        f"{progress.job_id}: {progress.state}, {progress.records:,} in, {in_flight:,} in flight, "
        f"{progress.outputs:,} out{speed}{letters}, snapshot {progress.version}{restarts}"
    )
    return "\n".join([line, *map(_line_of_child, progress.children)])


def _line_of_child(child: ChildProgress) -> str:
    return (
        f"  process {child.number}: {child.in_flight:,} in flight, {child.outputs:,} out, "
        f"{child.processor_seconds:,.1f} s of processor time"
    )
