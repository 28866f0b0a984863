"""Where a run of the demo keeps its files: one folder, whose parts every process of the run finds by name."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

OPERATOR_ID = "flight-enrichment"

CAPACITY = 200
"""Calls that a subtask has under way. With 0.28 s a call on average, 700 calls a second keep it full. Two cores make
about 5,000 in all, so they would never fill a capacity of thousands."""

TIMEOUT_SECONDS = 300.0
"""The flights of an aircraft wait for each other, and the timeout includes that wait: the calls of the busiest
aircraft take 170 s in all."""


@dataclass(frozen=True, slots=True)
class Workspace:
    """The folder of one run.

    Attributes
    ----------
    root : Path
        An absolute path; Spark's workers run elsewhere and resolve nothing relative.
    """

    root: Path

    @property
    def flights(self) -> Path:
        """The stream: one Parquet file a micro-batch."""
        return self.root / "flights"

    @property
    def tables(self) -> Path:
        """What the lookup service serves, as Parquet for the batch job."""
        return self.root / "tables"

    @property
    def snapshots(self) -> Path:
        """The root that the pipeline writes its snapshots under."""
        return self.root / "snapshots"

    @property
    def operator(self) -> Path:
        """The operator's own folder of snapshots, as the command line takes it."""
        return self.snapshots / OPERATOR_ID

    @property
    def checkpoint(self) -> Path:
        """Spark's own checkpoint."""
        return self.root / "checkpoint"

    @property
    def delivered(self) -> Path:
        """What the sink wrote: one folder an epoch."""
        return self.root / "delivered"

    @property
    def samples(self) -> Path:
        """Calls in flight and completed over time, as the workers saw them."""
        return self.root / "samples"

    @property
    def logs(self) -> Path:
        """What the child processes said."""
        return self.root / "logs"

    @property
    def scratch(self) -> Path:
        """Temporary files of the child process that runs."""
        return self.root / "scratch"

    @property
    def comparison(self) -> Path:
        """What the comparison found."""
        return self.root / "comparison.json"

    @property
    def summary(self) -> Path:
        """The figures of the run."""
        return self.root / "summary.json"

    @property
    def plot(self) -> Path:
        """The picture of the run."""
        return self.root / "timeline.png"

    def prepare(self) -> None:
        """Remove what an earlier run left here, and nothing else, and make the folders."""
        self.discard_bulk()
        _discard(self.snapshots, self.logs, self.scratch)
        for file in (self.comparison, self.summary, self.plot):
            file.unlink(missing_ok=True)
        for folder in (self.flights, self.tables, self.samples, self.logs):
            folder.mkdir(parents=True)

    def discard_bulk(self) -> None:
        """Remove what only a second look at a run needs; snapshots, logs and figures stay."""
        _discard(self.flights, self.tables, self.checkpoint, self.delivered, self.samples)


def _discard(*folders: Path) -> None:
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
