"""What the soaks of a pipeline and of a job share: runs that are killed, and what must hold after all of them."""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any, ClassVar

from benchmarks._soak_plot import plot
from benchmarks._soak_service import hangs, user_of
from snapshots import Snapshot, SnapshotStore

EPOCHS_DEFAULT = 40
ROWS_PER_SECOND = 20
_RUNS = 3
_ROOT = Path(__file__).parents[1]
_RUN_EPOCHS_MAX = 100


class Soak(ABC):
    """What outlives the runs, and what they have told.

    Parameters
    ----------
    folder : Path
        Has the snapshots, the service's book of calls, and the sink's table; and what a subclass keeps there.
    rows_per_second : int
        Of the source.
    series : path or None
        The samples are also written there, a line of JSON each, while it runs.

    Attributes
    ----------
    runs : list of list of dict
        The samples of each run.
    problems : list of str
        What is not as it must be.
    """

    program: ClassVar[str]
    """The module of one run."""

    killed: ClassVar[str]
    """What of a run is killed or stopped, for its events."""

    slack: ClassVar[Mapping[str, tuple[float, float]]]
    """By so much may the end of a run be above its beginning and be called level: a factor, and what is added to it."""

    shown: ClassVar[Sequence[str]]
    """What is shown and not judged."""

    over_all_runs: ClassVar[Sequence[str]]
    """What outlives the runs."""

    operator_id: ClassVar[str] = "soak"

    def __init__(self, folder: Path, rows_per_second: int, series: Path | None = None) -> None:
        self.folder = folder
        self.rows_per_second = rows_per_second
        self.runs: list[list[dict[str, Any]]] = []
        self.problems: list[str] = []
        self._series = series
        self._started = time.monotonic()

    @abstractmethod
    def settings(self, number: int, epochs: int, *, is_last: bool) -> Any:
        """Return what a run is told: a data class."""

    @abstractmethod
    def expected(self) -> list[int]:
        """Return the rows that must have been delivered."""

    @abstractmethod
    def kill(self, process: subprocess.Popen[str]) -> None:
        """Kill a run that has not ended."""

    def check_ended(self, samples: list[dict[str, Any]]) -> list[str]:
        """Return what is wrong with what a run has left behind."""
        return []

    def other_state(self, newest: Snapshot) -> list[str]:
        """Return what is wrong with the rest of the newest snapshot."""
        return []

    def go(self, run_epochs: int, goes_on: Callable[[Soak], bool]) -> None:
        """Run one driver after the other; the last one stops cleanly and finishes what is in flight."""
        (self.folder / "table").mkdir()
        (self.folder / "calls").touch()
        # A folder of its own, in which left-over files can be counted, with a short path: sockets have a limit.
        with tempfile.TemporaryDirectory(prefix="soak-") as temporary:
            for number in itertools.count():
                is_last = not goes_on(self)
                settings = self.settings(number, run_epochs, is_last=is_last)
                # A killed one is killed one epoch before it would have stopped.
                self._run(settings, temporary, run_epochs - 1 if number % 2 == 0 and not is_last else None)
                if is_last:
                    break
        self.problems += self._outputs() + self._calls_made() + self._state() + self._growth()

    @property
    def epochs(self) -> int:
        """How many were delivered."""
        return sum(map(len, self.runs))

    def _run(self, settings: Any, temporary: str, killed_after: int | None) -> None:
        samples: list[dict[str, Any]] = []
        self.runs.append(samples)
        log = self.folder / f"run-{len(self.runs)}.log"
        with (
            log.open("w", encoding="utf-8") as errors,
            subprocess.Popen(
                [sys.executable, "-m", self.program, json.dumps(asdict(settings))],
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
                cwd=_ROOT,
                env=os.environ | {"TMPDIR": temporary},
            ) as process,
        ):
            assert process.stdout is not None, "it is a pipe"
            try:
                for line in process.stdout:
                    samples.append(self._note(json.loads(line), settings))
                    if len(samples) == killed_after:
                        break
                else:
                    process.wait()
            finally:
                # If this process is interrupted, the run must not live on without it.
                if process.poll() is None:
                    self.kill(process)
        if process.returncode not in (0, -signal.SIGKILL):
            raise RuntimeError(f"a run has failed: {log.read_text(encoding='utf-8')[-4000:]}")
        self.problems += self.check_ended(samples)

    def _note(self, sample: dict[str, Any], settings: Any) -> dict[str, Any]:
        """Add to a sample when it was taken and in which run, and write it down."""
        run = len(self.runs)
        if run > 1 and not self.runs[-1]:
            sample["events"].append(f"{self.killed} killed" if run % 2 == 0 else f"{self.killed} stopped")
        sample |= {"run": run, "seconds": time.monotonic() - self._started, "is_last": settings.is_last}
        if self._series is not None:
            with self._series.open("a", encoding="utf-8") as series:
                series.write(json.dumps(sample) + "\n")
        return sample

    def table(self) -> list[list[Any]]:
        """Return what the sink has: row, key and count, which is None for a row that has timed out; perhaps more."""
        parts = sorted((self.folder / "table").iterdir(), key=lambda part: int(part.stem))
        return [row for part in parts for row in json.loads(part.read_text(encoding="utf-8"))]

    def calls(self) -> list[list[Any]]:
        """Return of each call the row, the idempotency key, and when it began."""
        return [json.loads(line) for line in (self.folder / "calls").read_text(encoding="utf-8").splitlines()]

    def _outputs(self) -> list[str]:
        found, expected = Counter(row[0] for row in self.table()), Counter(self.expected())
        lost, more = expected - found, found - expected
        problems = [f"{len(lost)} rows are lost: {sorted(lost)[:10]}"] if lost else []
        return problems + ([f"{len(more)} rows came twice, or from nowhere: {sorted(more)[:10]}"] if more else [])

    def _calls_made(self) -> list[str]:
        keys, newest = defaultdict(set), dict[int, float]()
        for row, key, began in self.calls():
            keys[row].add(key)
            newest[row] = began
        changed = sorted(row for row, found in keys.items() if len(found) > 1)
        never = sorted({row[0] for row in self.table() if row[2] is not None} - keys.keys())
        again = sorted(row for row, when in self._deliveries().items() if newest.get(row, 0) > when)
        problems = [f"the idempotency keys of {changed[:10]} have changed"] if changed else []
        problems += [f"{again[:10]} were called for again after they were delivered"] if again else []
        return problems + ([f"{never[:10]} were never called for"] if never else [])

    def _deliveries(self) -> dict[int, float]:
        """Return when each row was delivered."""
        parts = [(part.stat().st_mtime, part) for part in (self.folder / "table").iterdir()]
        return {row[0]: when for when, part in parts for row in json.loads(part.read_text(encoding="utf-8"))}

    def _state(self) -> list[str]:
        counted = [row for row in self.table() if row[2] is not None]
        answered = sorted(row[0] for row in counted if hangs(row[0]))
        problems = [f"{answered[:10]} were counted without an answer"] if answered else []
        totals = Counter(user_of(row[0]) for row in counted)
        counts = defaultdict(list)
        for _, user, count, *_ in counted:
            counts[user].append(count)
        wrong = sorted(user for user in totals if sorted(counts[user]) != list(range(1, totals[user] + 1)))
        if wrong:
            problems.append(f"the rows of {wrong[:10]} were not counted one by one")
        latest = SnapshotStore(self.folder / "snapshots", self.operator_id).latest()
        assert latest is not None, "epochs were delivered"
        if state_of(latest, self.count_state) != totals:
            problems.append("the state of the newest snapshot has other counts than the rows")
        problems += self.other_state(latest)
        return problems + ([f"{latest.in_flight_count} are left in flight"] if latest.in_flight_count else [])

    count_state: ClassVar[str] = "count"
    """The name of the state with the counts."""

    def _growth(self) -> list[str]:
        found = self.levels()
        return [
            f"{name} grow: from {found[name][0]:.0f} to {found[name][1]:.0f}"
            for name in self.slack
            if not found[name][2]
        ]

    def levels(self) -> dict[str, tuple[float, float, bool]]:
        """Return of each measure the values early and late in the run where it grew most, and whether that is level.

        What outlives the runs is followed over all of them.
        """
        found = {}
        for name in (*self.slack, *self.shown):
            factor, more = self.slack.get(name, (math.inf, 0))
            series = [[sample[name] for sample in run if name in sample] for run in self.runs]
            if name in self.over_all_runs:
                series = [list(itertools.chain(*series))]
            pairs = [(early_of(one), late_of(one)) for one in series if one]
            early, late = max(pairs, key=lambda pair: pair[1] - pair[0])
            found[name] = early, late, late <= early * factor + more
        return found


def state_of(snapshot: Snapshot, state: str) -> dict[Any, Any]:
    """Return what a state has for each key."""
    columns = snapshot.to_arrow(state).to_pydict()
    return dict(zip(columns["key"], columns["value"], strict=True))


def early_of(values: list[float]) -> float:
    """Return what is usual in the second quarter: the first one is warming up."""
    return median(values[len(values) // 4 : max(len(values) // 2, len(values) // 4 + 1)])


def late_of(values: list[float]) -> float:
    """Return what is usual in the last quarter."""
    return median(values[3 * len(values) // 4 :])


def run_soak(made: Soak, epochs: int, hours: float | None) -> None:
    """Run for so many epochs, or hours, and check what is left."""
    if hours is None:
        run_epochs = min(_RUN_EPOCHS_MAX, max(1, epochs // _RUNS))
        made.go(run_epochs, lambda soak: len(soak.runs) < epochs // run_epochs - 1)
    else:
        end = time.monotonic() + 3600 * hours
        made.go(_RUN_EPOCHS_MAX, lambda _: time.monotonic() < end)


def show(soak: Soak) -> None:
    """Print what was found."""
    rows = soak.table()
    events = Counter(event for run in soak.runs for sample in run for event in sample["events"])
    timed_out = sum(row[2] is None for row in rows)
    print(f"{soak.epochs} epochs in {len(soak.runs)} runs, {len(rows)} rows, {len(soak.calls())} calls")
    print(f"{timed_out} rows timed out, {sum(hangs(row[0]) for row in rows)} of them for want of an answer")
    print(", ".join(f"{event}: {times}" for event, times in sorted(events.items())) + "\n")
    _row("", "early", "late", "")
    for name, (early, late, is_level) in soak.levels().items():
        _row(name, f"{early:.0f}", f"{late:.0f}", "" if name in soak.shown else "level" if is_level else "GROWS")
    print("\n" + ("exact: outputs, state and calls" if not soak.problems else "\n".join(soak.problems)))


def dump(soak: Soak) -> None:
    """Print it for machines."""
    levels = {name: dict(zip(("early", "late", "is_level"), row, strict=True)) for name, row in soak.levels().items()}
    json.dump({"epochs": soak.epochs, "levels": levels, "problems": soak.problems}, sys.stdout, indent=2)
    print()


def _row(*cells: str) -> None:
    print("{:<26}{:>8}{:>8}  {}".format(*cells))


def main_of(kind: type[Soak], description: str | None) -> int:
    """Run a soak from the command line."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--epochs", type=int, default=EPOCHS_DEFAULT, help=f"how many (default: {EPOCHS_DEFAULT})")
    length.add_argument("--hours", type=float, help="how long")
    parser.add_argument("--rows-per-second", type=int, default=ROWS_PER_SECOND, help="of the source")
    parser.add_argument("--json", action="store_true", help="machine-readable")
    parser.add_argument(
        "--repeats", type=int, default=1, help="has no effect: what is checked is the same in every run"
    )
    parser.add_argument("--series", type=Path, metavar="FILE", help="append each sample to it, as a line of JSON")
    parser.add_argument("--plot", metavar="FILE", help="draw the run as SVG")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("told to end"))  # then the run is ended, too
    with tempfile.TemporaryDirectory(prefix="keygroups-soak-") as folder:
        made = kind(Path(folder), options.rows_per_second, options.series)
        run_soak(made, options.epochs, options.hours)
        if options.plot:
            plot(list(itertools.chain(*made.runs)), options.plot)
        (dump if options.json else show)(made)
    return 1 if made.problems else 0
