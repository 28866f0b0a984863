"""How far long work is: bytes done, and the time that is left."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

Report = Callable[[int, int], None]
"""Is told how many bytes are done, and of how many."""


@contextmanager
def progress_bar(verb: str) -> Iterator[Report]:
    """Show a bar on stderr while something is done, on a terminal only; it leaves nothing behind."""
    columns = (TextColumn(verb), BarColumn(), DownloadColumn(binary_units=True), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty(), transient=True) as bar:
        task = bar.add_task(verb, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
