"""A line on a terminal, or in a notebook, that shows how far a running job is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from time import monotonic

from async_op.job.progress import JobProgress
from async_op.threads.own_thread import on_own_thread
from keygroups.errors import PackageNotInstalled

REFRESH_SECONDS = 0.5


@asynccontextmanager
async def shown(progress: Callable[[], JobProgress]) -> AsyncIterator[None]:
    """Show the progress of a job while the block runs; where nobody can see it move, only its end.

    Parameters
    ----------
    progress : callable
        Returns the progress of the job.

    Raises
    ------
    PackageNotInstalled
        rich is missing.
    """
    await on_own_thread(_load)
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    speed = Speed()
    # The event loop's own thread draws: another one could show a job that has ended.
    with Live(console=Console(stderr=True), auto_refresh=False, redirect_stdout=False, redirect_stderr=False) as live:

        async def draw() -> None:
            while True:
                newest = progress()
                live.update(Text(line_of(newest, speed.of(newest.outputs))), refresh=True)
                await asyncio.sleep(REFRESH_SECONDS)

        drawing = asyncio.ensure_future(draw())
        try:
            yield
        finally:
            drawing.cancel()
            await asyncio.gather(drawing, return_exceptions=True)  # no job fails because its line cannot be drawn
            live.update(Text(line_of(progress(), None)), refresh=True)


def _load() -> None:
    """Import rich, which reads many files."""
    try:
        import rich.live  # noqa: F401
    except ImportError as error:
        raise PackageNotInstalled("rich", "Job.run(show_progress=True)") from error


class Speed:
    """Outputs a second since it was last asked, by the monotonic clock."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._since = clock()
        self._outputs = 0

    def of(self, outputs: int) -> float:
        """Return the speed that leads to a number of outputs."""
        now = self._clock()
        seconds, made = now - self._since, outputs - self._outputs
        self._since, self._outputs = now, outputs
        return max(0, made) / seconds if seconds > 0 else 0.0


def line_of(progress: JobProgress, outputs_per_second: float | None) -> str:
    """Return the line for a moment of a job.

    Examples
    --------
    >>> line_of(JobProgress(job_id="prices", state="running", version=3, records=1200, outputs=1100), 250.0)
    'prices: running, 1,200 in, 0 in flight, 1,100 out (250/s), snapshot 3'
    """
    speed = "" if outputs_per_second is None else f" ({outputs_per_second:,.0f}/s)"
    letters = f", {progress.dead_letters:,} dead letters" if progress.dead_letters else ""
    in_flight = sum(progress.in_flight.values())
    return (
        f"{progress.job_id}: {progress.state}, {progress.records:,} in, {in_flight:,} in flight, "
        f"{progress.outputs:,} out{speed}{letters}, snapshot {progress.version}"
    )
