"""Runs a system apart, in its own environment, and watches how much memory it takes."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.peers.cases import Case
from benchmarks.peers.child import RESULT
from benchmarks.peers.peer import Peer, Unavailable
from benchmarks.peers.process_tree import kill_descendants, memory_bytes_of

RUN_SECONDS_MAX = 1800
MEMORY_INTERVAL_SECONDS = 0.5
ROOT = Path(__file__).parents[2]


class RunFailed(Exception):
    """A run ended with an error; the text is the last line that it wrote."""


@dataclass(frozen=True)
class Run:
    """What one run took."""

    seconds: float
    cpu_seconds: float
    peak_bytes: int
    versions: dict[str, str]


@dataclass
class Result:
    """All runs of a system for one case, or why there are none."""

    system: str
    peer: Peer
    case: Case
    runs: list[Run] = field(default_factory=list)
    absent: str | None = None
    failed: bool = False

    @property
    def seconds(self) -> float:
        """The median of the wall time."""
        return statistics.median(run.seconds for run in self.runs)

    @property
    def newest(self) -> str:
        """What came of the newest run, in a line."""
        if not self.runs:
            return f"{self.system}: {self.absent}"
        run = self.runs[-1]
        return f"{self.system}: {run.seconds:.2f} s, {run.cpu_seconds:.1f} s of processors"

    def as_json(self) -> dict[str, Any]:
        """Return all that the command knows."""
        row: dict[str, Any] = {"system": self.system, "title": self.peer.title, "lacks": self.peer.lacks}
        if not self.runs:
            return row | {"absent": self.absent, "failed": self.failed}
        return row | {
            "seconds": round(self.seconds, 3),
            "seconds_of_runs": [round(run.seconds, 3) for run in self.runs],
            "rows_per_second": round(self.case.rows / self.seconds),
            "cpu_seconds": round(statistics.median(run.cpu_seconds for run in self.runs), 2),
            "peak_mb": round(statistics.median(run.peak_bytes for run in self.runs) / 1e6),
            "versions": self.runs[-1].versions,
        }


def run_apart(python: Path, system: str, case: Case) -> Run:
    """Run a system once, in a process of its own.

    Raises
    ------
    Unavailable
        It cannot run here.
    RunFailed
        It failed, its outputs are wrong, or it took too long.
    """
    with tempfile.TemporaryDirectory(prefix="keygroups-peers-") as name:
        folder = Path(name)
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(
                [python, "-m", "benchmarks.peers.child", system, case.name, str(case.rows), name],
                cwd=ROOT,
                env=os.environ | {"PYTHONPATH": str(ROOT)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
            peak_bytes = watch(process)
        if process.returncode != 0:
            raise RunFailed(last_line(folder / "log"))
        result = json.loads((folder / RESULT).read_text(encoding="utf-8"))
    if "unavailable" in result:
        raise Unavailable(result["unavailable"])
    return Run(result["seconds"], result["cpu_seconds"], peak_bytes, result["versions"])


def watch(process: subprocess.Popen[bytes]) -> int:
    """Wait for the end of a process; returns the most memory that it and its descendants had."""
    peak_bytes = 0
    give_up = time.monotonic() + RUN_SECONDS_MAX
    try:
        while process.poll() is None:
            if time.monotonic() > give_up:
                raise RunFailed(f"ended after {RUN_SECONDS_MAX} s")
            peak_bytes = max(peak_bytes, memory_bytes_of(process.pid))
            with suppress(subprocess.TimeoutExpired):
                process.wait(MEMORY_INTERVAL_SECONDS)
    finally:
        if process.poll() is None:
            kill_descendants(process.pid)
            process.kill()
            process.wait()
    return peak_bytes


def last_line(log: Path) -> str:
    """Return the last line that says something."""
    lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    return lines[-1] if lines else "it wrote nothing"
