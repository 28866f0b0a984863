"""A progress bar for long work: bytes done and remaining time."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

Report = Callable[[int, int], None]
"""Called with the number of bytes done and the total number of bytes."""


@contextmanager
def progress_bar(verb: str) -> Iterator[Report]:
    """Show a progress bar on stderr, only on a terminal; it disappears at the end."""
    columns = (TextColumn(verb), BarColumn(), DownloadColumn(binary_units=True), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty(), transient=True) as bar:
        task = bar.add_task(verb, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
