"""Two runs of the pipeline: one that is killed in the middle of a micro-batch, and one that goes on and ends."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

from demo.history import History, in_words
from demo.latency import Latency
from demo.process import Child
from demo.progress import Display
from demo.service import LookupService
from demo.workspace import Workspace

_POLL_INTERVAL_S = 0.1
_EPOCHS_BEFORE_THE_CRASH = 3
_CALLS_SINCE_THE_COMMIT = 500
"""So many are lost in the crash; a share of a micro-batch would let the kill come in the last one on a slow machine."""

# Python workers notice the end of their JVM within moments; a minute means that they do not.
_WORKERS_GONE_WITHIN_S = 60.0


@dataclass(frozen=True, slots=True)
class Runs:
    """How the pipeline is run.

    Attributes
    ----------
    workspace : Workspace
        The folder of the run.
    service : LookupService
        What it looks up in.
    latency : Latency
        How long a lookup takes.
    history : History
        What was committed.
    display : Display
        Where progress is shown.
    """

    workspace: Workspace
    service: LookupService
    latency: Latency
    history: History
    display: Display

    def child(self, run: str, parallelism: int, rescales: Mapping[int, int] | None = None) -> Child:
        """Build the process of one run, which may be told to rescale itself after so many deliveries."""
        arguments = [
            str(self.workspace.root),
            f"--socket={self.service.socket}",
            f"--parallelism={parallelism}",
            f"--latency={self.latency.median}",
            f"--seed={self.latency.seed}",
            "--rescale",
            *(f"{deliveries}:{then}" for deliveries, then in (rescales or {}).items()),
        ]
        return Child("pipeline", arguments, self.workspace.logs / f"{run}.log", self.workspace.scratch)

    def observe(self) -> int:
        """Read and show how far the pipeline is; returns the calls made so far."""
        calls = self.service.calls()
        # Read after the calls, so that all of them were made before a snapshot that is found to be missing.
        self.history.refresh()
        for epoch in self.history.take_new_epochs():
            self.display.say(f"  {in_words(epoch)}")
        self.display.update(self.history.total("outputs"), self.history.in_flight, calls)
        return calls


def run_until_killed(runs: Runs, parallelism: int, batch_rows: int) -> float:
    """Start the pipeline, and kill it in the middle of a micro-batch.

    At least three epochs are committed by then, and the last one left elements in flight.

    Parameters
    ----------
    runs : Runs
        What to run.
    parallelism : int
        Subtasks.
    batch_rows : int
        Flights of a micro-batch.

    Returns
    -------
    float
        When it was killed, in seconds since 1970.

    Raises
    ------
    ChildFailed
        The pipeline ended by itself.
    """
    version, calls_at_commit = 0, 0
    with runs.child("before-the-crash", parallelism) as child:
        while child.is_running():
            calls = runs.observe()
            if runs.history.version != version:
                version, calls_at_commit = runs.history.version, calls
            in_the_middle = calls - calls_at_commit >= min(_CALLS_SINCE_THE_COMMIT, batch_rows // 2)
            if version >= _EPOCHS_BEFORE_THE_CRASH and runs.history.in_flight and in_the_middle:
                killed_at = time.time()
                child.kill()
                _await_workers_gone(runs.service)
                return killed_at
            time.sleep(_POLL_INTERVAL_S)
        raise child.ended_early()


def run_to_the_end(runs: Runs, parallelism: int, rescales: Mapping[int, int]) -> None:
    """Start the pipeline where it was stopped, and wait for its end.

    Parameters
    ----------
    runs : Runs
        What to run.
    parallelism : int
        Subtasks at the start.
    rescales : mapping of int to int
        After so many deliveries so many subtasks, while the query goes on.

    Raises
    ------
    ChildFailed
        It ended with an error.
    """
    with runs.child("after-the-crash", parallelism, rescales) as child:
        while child.is_running():
            runs.observe()
            time.sleep(_POLL_INTERVAL_S)
    runs.observe()


def _await_workers_gone(service: LookupService) -> None:
    deadline = time.monotonic() + _WORKERS_GONE_WITHIN_S
    while service.connections():
        if time.monotonic() > deadline:
            raise TimeoutError("a worker of the killed driver is still connected to the service")
        time.sleep(_POLL_INTERVAL_S)
