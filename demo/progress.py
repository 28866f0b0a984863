"""What the reader sees while the demo runs: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn


class Display:
    """Tells what happens, and how many flights came out.

    Parameters
    ----------
    bar : Progress or None
        None where there is no terminal.
    flights : int
        How many will come out.
    """

    def __init__(self, bar: Progress | None, flights: int) -> None:
        self._bar = bar
        self._begun = time.monotonic()
        self._task: TaskID | None = bar.add_task("starting", total=flights) if bar else None

    def say(self, text: str) -> None:
        """Tell one thing that happened."""
        line = f"{time.monotonic() - self._begun:6.1f} s  {text}"
        if self._bar:
            self._bar.console.print(line, highlight=False, markup=False)
        else:
            print(line, flush=True)

    def update(self, delivered: int, in_flight: int, calls: int) -> None:
        """Move the bar, if there is one; the elements in flight come from the newest snapshot."""
        if self._bar is not None and self._task is not None:
            details = f"{in_flight:,} in flight in the snapshot, {calls:,} calls"
            self._bar.update(self._task, completed=delivered, description=details)


@contextmanager
def display(flights: int) -> Iterator[Display]:
    """Show progress for as long as the context lasts."""
    console = Console()
    if not console.is_terminal:
        yield Display(None, flights)
        return
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=20), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as bar:
        yield Display(bar, flights)
