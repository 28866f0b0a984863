"""A pipeline that is left running: whether it stays exact through kills and rescales, and whether anything grows.

    python -m benchmarks.soak --epochs 200
    python -m benchmarks.soak --hours 2 --series soak.jsonl --plot docs/soak.svg
    python -m benchmarks._soak_plot soak.jsonl soak.svg      draws what there is so far

Rows of a rate source, filtered, so that many micro-batches are empty. The service is slow and down now and then, fails,
and for some rows never answers. Every second driver is killed (`kill -9`), the others stop cleanly; each begins with
another parallelism, which changes now and then meanwhile, and now and then a host is killed. Three of four runs have
hosts, the fourth has its operators in tasks. Afterwards all outputs, the state and all calls are compared with what
they must be. Needs Linux, for /proc.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import ClassVar

from benchmarks._soak import Soak, main_of
from benchmarks._soak_run import RunSettings, passes

_PARALLELISMS = (2, 3, 1, 4)
_IN_TASKS_EVERY = 4


class PipelineSoak(Soak):
    """A pipeline on Spark; its folder has the input's checkpoint, too."""

    program = "benchmarks._soak_run"
    killed = "driver"
    slack: ClassVar = {
        "driver, MB": (1.1, 32),
        "heap of the JVM, MB": (1.25, 48),
        "largest worker or host, MB": (1.1, 32),
        "workers": (1.0, 4),
        "hosts": (1.0, 4),
        "threads": (1.1, 8),
        # Spark has pools of up to 100 threads, which fill within the first twenty epochs and then stay.
        "threads of the JVM": (1.1, 300),
        "open files": (1.1, 32),
        "open files of a host": (1.1, 16),
        "files of snapshots": (1.25, 50),
        "files of hosts": (1.25, 30),
    }
    # The JVM takes what it may, and how long an epoch takes depends on the machine.
    shown = ("JVM, MB", "epoch, ms")
    over_all_runs = ("files of snapshots", "files of hosts")

    def settings(self, number: int, epochs: int, *, is_last: bool) -> RunSettings:
        """Return what a driver is told."""
        return RunSettings(
            str(self.folder),
            _PARALLELISMS[number % len(_PARALLELISMS)],
            epochs,
            self.rows_per_second,
            is_resident=number % _IN_TASKS_EVERY != _IN_TASKS_EVERY - 1,
            is_last=is_last,
        )

    def kill(self, process: subprocess.Popen[str]) -> None:
        """Kill a driver with its JVM, its workers and its hosts."""
        os.killpg(process.pid, signal.SIGKILL)

    def expected(self) -> list[int]:
        """Return the rows that pass, of all seconds that the source has given."""
        per_second = self.rows_per_second
        seconds = [-(-(row[0] + 1) // per_second) for row in self.table()]
        return [
            row for row in range(max([self._committed_seconds(), *seconds]) * per_second) if passes(row, per_second)
        ]

    def _committed_seconds(self) -> int:
        """Return how far the source was when Spark noted the last micro-batch as done."""
        checkpoint = self.folder / "checkpoint"
        batches = [int(path.name) for path in (checkpoint / "commits").iterdir() if path.name.isdigit()]
        return int((checkpoint / "offsets" / str(max(batches))).read_text(encoding="utf-8").splitlines()[-1])


if __name__ == "__main__":
    sys.exit(main_of(PipelineSoak, __doc__))
