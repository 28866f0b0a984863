"""What moves: a bar while long work goes on, and a report that is shown again and again."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from typing import TypeAlias

from rich import progress as bars
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from keygroups.context_managers import contextmanager
from snapshots.cli.output import Report, new_console, to_rich
from snapshots.progress import Progress

Show: TypeAlias = Callable[[Report], None]
"""Shows the newest report."""


@contextmanager
def progress_bar(verb: str) -> Iterator[Progress]:
    """Show a progress bar on stderr, only on a terminal; it disappears at the end."""
    size, left = bars.DownloadColumn(binary_units=True), bars.TimeRemainingColumn()
    columns = (bars.TextColumn(verb), bars.BarColumn(), size, left)
    with bars.Progress(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty(), transient=True) as bar:
        task = bar.add_task(verb, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


@contextmanager
def repeated(*, as_json: bool, once: bool) -> Iterator[Show]:
    """Yield what shows each report: in one place on a terminal, one below the other elsewhere, as JSON a line each.

    With `once`, there will be only one.
    """
    console = new_console()
    if as_json:
        yield _write_line
    elif once:
        yield lambda report: console.print(_compact(report))
    elif not console.is_terminal or console.is_dumb_terminal:
        yield lambda report: console.print(_compact(report), "")
    else:
        shown: list[Report] = []
        # The whole screen: elsewhere, parts of earlier views would stay behind when the terminal is resized.
        with Live(console=console, screen=True, auto_refresh=False) as live:

            def show(report: Report) -> None:
                shown[:] = [report]
                live.update(_compact(report), refresh=True)

            yield show
        for report in shown:  # the last one stays when the screen is given back
            console.print(_compact(report))


def _write_line(report: Report) -> None:
    sys.stdout.write(json.dumps(report.to_json()) + "\n")
    sys.stdout.flush()  # the reader of a pipe waits for this line


def _compact(report: Report) -> Group:
    """Render the tables without lines, so that they fit on a small screen."""
    parts = ((Text(table.title, style="bold"), to_rich(table, None)) for table in report.tables())
    return Group(*(part for pair in parts for part in pair))
