"""The figures of a run: a table for people, JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The figures of a run.

    Attributes
    ----------
    flights, rows_delivered, rows_different : int
        Rows of the stream, of the sink, and those that differ from the batch job's.
    micro_batches : int
        Files of the stream.
    calls_made : int
        As the service counted them.
    reinvoked, reinvoked_before_crash : int
        Elements that were called again because a snapshot held them pending: in all epochs, and in those before the
        crash, where calls go on from one epoch to the next.
    version_at_crash : int
        The newest snapshot when the driver was killed.
    in_flight_at_crash, reinvoked_after_crash : int
        Elements in flight in that snapshot, and how many of them had a call that the first epoch afterwards repeated;
        the others were still waiting for their first call.
    snapshots, snapshot_bytes : int
        Commits, and the bytes of all files that they name.
    old_parallelism, new_parallelism : int
        Before the crash, and after it.
    parallelism_of_epochs : tuple of int
        Subtasks of each epoch; the run after the crash rescales itself on the fly.
    rescale_milliseconds : float
        The commit that changed the parallelism.
    pipeline_seconds : float
        Wall time of both runs of the pipeline and the rescale between them.
    baseline_rows, baseline_sample_seconds, baseline_seconds : int, float, float
        Flights that the blocking client was measured on, its time for them, and extrapolated to all.
    """

    flights: int
    rows_delivered: int
    rows_different: int
    micro_batches: int
    calls_made: int
    reinvoked: int
    reinvoked_before_crash: int
    version_at_crash: int
    in_flight_at_crash: int
    reinvoked_after_crash: int
    snapshots: int
    snapshot_bytes: int
    old_parallelism: int
    new_parallelism: int
    parallelism_of_epochs: tuple[int, ...]
    rescale_milliseconds: float
    pipeline_seconds: float
    baseline_rows: int
    baseline_sample_seconds: float
    baseline_seconds: float

    @property
    def equal(self) -> bool:
        """Whether every flight came out exactly once with every value right."""
        return self.rows_delivered == self.flights and self.rows_different == 0

    def save(self, path: Path) -> None:
        """Write the figures as JSON."""
        path.write_text(json.dumps(asdict(self), indent=2) + "\n")

    def show(self) -> None:
        """Print the figures as a table."""
        table = Table(title="flights, enriched through a crash and three rescales", show_header=False)
        table.add_column()
        table.add_column(justify="right")
        for name, value in self._rows():
            table.add_row(name, value)
        Console().print(table)

    def _rows(self) -> list[tuple[str, str]]:
        speedup = self.baseline_seconds / self.pipeline_seconds
        return [
            ("flights in, in micro-batches", f"{self.flights:,} in {self.micro_batches}"),
            ("rows out, different from the batch job's", f"{self.rows_delivered:,}, {self.rows_different:,}"),
            ("calls made", f"{self.calls_made:,}"),
            ("calls repeated before the crash", f"{self.reinvoked_before_crash:,}"),
            ("in flight in the snapshot before the crash", f"{self.in_flight_at_crash:,}"),
            ("  of them called again after the crash", f"{self.reinvoked_after_crash:,}"),
            ("snapshots", f"{self.snapshots:,} of {self.snapshot_bytes / 2**20:.1f} MiB together"),
            ("subtasks, and for how many epochs", ", ".join(_runs(self.parallelism_of_epochs))),
            (
                f"rescale from {self.old_parallelism} to {self.new_parallelism}, by the command line",
                f"{self.rescale_milliseconds:.1f} ms",
            ),
            ("pipeline, crash and restart included", f"{self.pipeline_seconds:,.0f} s"),
            (f"one call at a time (measured on {self.baseline_rows})", f"{self.baseline_seconds:,.0f} s"),
            ("faster by", f"{speedup:,.{0 if speedup >= 10 else 1}f} times"),
        ]


def _runs(numbers: Iterable[int]) -> Iterator[str]:
    """Yield each number that stands in a row, and how often it does: "3 (12)"."""
    for number, run in groupby(numbers):
        yield f"{number} ({sum(1 for _ in run)})"
