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
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks._soak_plot import plot
from benchmarks._soak_run import OPERATOR_ID, RunSettings, hangs, passes, start_arguments, user_of
from snapshots import SnapshotStore

EPOCHS_DEFAULT = 40
ROWS_PER_SECOND = 20
_RUNS = 3
_ROOT = Path(__file__).parents[1]
_RUN_EPOCHS_MAX = 100
_PARALLELISMS = (2, 3, 1, 4)
_IN_TASKS_EVERY = 4

SLACK: dict[str, tuple[float, float]] = {
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
"""By so much may the end of a run be above its beginning and be called level: a factor, and what is added to it."""

SHOWN = ("JVM, MB", "epoch, ms")
"""What is shown and not judged: the JVM takes what it may, and how long an epoch takes depends on the machine."""

OVER_ALL_RUNS = ("files of snapshots", "files of hosts")
"""What outlives the runs."""


@dataclass
class Soak:
    """What outlives the runs, and what they have told.

    Attributes
    ----------
    folder : Path
        Has the input's checkpoint, the snapshots, the service's book of calls and the sink's table.
    series : path or None
        The samples are also written there, a line of JSON each, while it runs.
    runs : list of list of dict
        The samples of each run.
    problems : list of str
        What is not as it must be.
    """

    folder: Path
    rows_per_second: int
    series: Path | None = None
    runs: list[list[dict[str, Any]]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    started: float = field(default_factory=time.monotonic)

    def go(self, run_epochs: int, goes_on: Callable[[Soak], bool]) -> None:
        """Run one driver after the other; the last one stops cleanly and finishes what is in flight."""
        (self.folder / "table").mkdir()
        (self.folder / "calls").touch()
        # A short path of its own, because those of hosts' sockets are limited, and what is left there is counted.
        with tempfile.TemporaryDirectory(prefix="soak-") as temporary:
            self._go(run_epochs, goes_on, temporary)
        self.problems += self._outputs() + self._keys_of_calls() + self._state() + self._growth()

    def _go(self, run_epochs: int, goes_on: Callable[[Soak], bool], temporary: str) -> None:
        for number in itertools.count():
            parallelism = _PARALLELISMS[number % len(_PARALLELISMS)]
            is_last = not goes_on(self)
            settings = RunSettings(
                str(self.folder),
                parallelism,
                run_epochs,
                self.rows_per_second,
                is_resident=number % _IN_TASKS_EVERY != _IN_TASKS_EVERY - 1,
                is_last=is_last,
            )
            self._run(settings, temporary, is_killed=number % 2 == 0 and not is_last)
            if is_last:
                break

    @property
    def epochs(self) -> int:
        """How many were delivered."""
        return sum(map(len, self.runs))

    def _run(self, settings: RunSettings, temporary: str, *, is_killed: bool) -> None:
        delivered, calls_before = {row[0] for row in self.table()}, len(self.calls())
        samples: list[dict[str, Any]] = []
        self.runs.append(samples)
        log = self.folder / f"run-{len(self.runs)}.log"
        arguments, environment = start_arguments(settings), os.environ | {"TMPDIR": temporary}
        with (
            log.open("w", encoding="utf-8") as errors,
            subprocess.Popen(
                arguments,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
                cwd=_ROOT,
                env=environment,
            ) as process,
        ):
            assert process.stdout is not None, "it is a pipe"
            try:
                for line in process.stdout:
                    samples.append(self._note(json.loads(line), settings))
                    if is_killed and len(samples) == settings.epochs - 1:
                        break
                else:
                    process.wait()
            finally:
                # Also where this process is interrupted: nobody else would end that one.
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
        if process.returncode not in (0, -signal.SIGKILL):
            raise RuntimeError(f"a run has failed: {log.read_text(encoding='utf-8')[-4000:]}")
        again = {row for row, _ in self.calls()[calls_before:]} & delivered
        if again:
            self.problems.append(
                f"run {len(self.runs)} called again for rows that were delivered: {sorted(again)[:10]}"
            )

    def _note(self, sample: dict[str, Any], settings: RunSettings) -> dict[str, Any]:
        """Add to a sample when it was taken and in which run, and write it down."""
        run = len(self.runs)
        if run > 1 and not self.runs[-1]:
            sample["events"].append("driver killed" if run % 2 == 0 else "driver stopped")
        sample |= {"run": run, "seconds": time.monotonic() - self.started, "is_resident": settings.is_resident}
        if self.series is not None:
            with self.series.open("a", encoding="utf-8") as series:
                series.write(json.dumps(sample) + "\n")
        return sample

    def table(self) -> list[list[Any]]:
        """Return what the sink has: row, key and count, which is None for a row that has timed out."""
        parts = sorted((self.folder / "table").iterdir(), key=lambda part: int(part.stem))
        return [row for part in parts for row in json.loads(part.read_text(encoding="utf-8"))]

    def calls(self) -> list[list[Any]]:
        """Return the row and the idempotency key of each call."""
        return [json.loads(line) for line in (self.folder / "calls").read_text(encoding="utf-8").splitlines()]

    def expected(self) -> list[int]:
        """Return the rows that must have been delivered: of all seconds that the source has given."""
        per_second = self.rows_per_second
        seconds = [-(-(row + 1) // per_second) for row, _, _ in self.table()]
        return [
            row for row in range(max([self._committed_seconds(), *seconds]) * per_second) if passes(row, per_second)
        ]

    def _committed_seconds(self) -> int:
        """Return how far the source was when Spark noted the last micro-batch as done."""
        checkpoint = self.folder / "checkpoint"
        batches = [int(path.name) for path in (checkpoint / "commits").iterdir() if path.name.isdigit()]
        return int((checkpoint / "offsets" / str(max(batches))).read_text(encoding="utf-8").splitlines()[-1])

    def _outputs(self) -> list[str]:
        found, expected = Counter(row[0] for row in self.table()), Counter(self.expected())
        lost, more = expected - found, found - expected
        problems = [f"{len(lost)} rows are lost: {sorted(lost)[:10]}"] if lost else []
        return problems + ([f"{len(more)} rows came twice, or from nowhere: {sorted(more)[:10]}"] if more else [])

    def _keys_of_calls(self) -> list[str]:
        keys = defaultdict(set)
        for row, key in self.calls():
            keys[row].add(key)
        changed = sorted(row for row, found in keys.items() if len(found) > 1)
        never = sorted({row for row, _, count in self.table() if count is not None} - keys.keys())
        problems = [f"the idempotency keys of {changed[:10]} have changed"] if changed else []
        return problems + ([f"{never[:10]} were never called for"] if never else [])

    def _state(self) -> list[str]:
        counted = [row for row in self.table() if row[2] is not None]
        answered = sorted(row for row, _, _ in counted if hangs(row))
        problems = [f"{answered[:10]} were counted without an answer"] if answered else []
        totals = Counter(user_of(row) for row, _, _ in counted)
        counts = defaultdict(list)
        for _, user, count in counted:
            counts[user].append(count)
        wrong = sorted(user for user in totals if sorted(counts[user]) != list(range(1, totals[user] + 1)))
        if wrong:
            problems.append(f"the rows of {wrong[:10]} were not counted one by one")
        latest = SnapshotStore(self.folder / "snapshots", OPERATOR_ID).latest()
        assert latest is not None, "epochs were delivered"
        state = latest.to_arrow("count").to_pydict()
        if dict(zip(state["key"], state["value"], strict=True)) != totals:
            problems.append("the state of the newest snapshot has other counts than the rows")
        return problems + ([f"{latest.in_flight_count} are left in flight"] if latest.in_flight_count else [])

    def _growth(self) -> list[str]:
        found = self.levels()
        return [
            f"{name} grow: from {found[name][0]:.0f} to {found[name][1]:.0f}" for name in SLACK if not found[name][2]
        ]

    def levels(self) -> dict[str, tuple[float, float, bool]]:
        """Return of each measure the values early and late in the run where it grew most, and whether that is level.

        What outlives the runs is followed over all of them.
        """
        found = {}
        for name in (*SLACK, *SHOWN):
            factor, more = SLACK.get(name, (math.inf, 0))
            series = [[sample[name] for sample in run if name in sample] for run in self.runs]
            if name in OVER_ALL_RUNS:
                series = [list(itertools.chain(*series))]
            pairs = [(early_of(one), late_of(one)) for one in series if one]
            early, late = max(pairs, key=lambda pair: pair[1] - pair[0])
            found[name] = early, late, late <= early * factor + more
        return found


def early_of(values: list[float]) -> float:
    """Return what is usual in the second quarter: the first one is warming up."""
    return median(values[len(values) // 4 : max(len(values) // 2, len(values) // 4 + 1)])


def late_of(values: list[float]) -> float:
    """Return what is usual in the last quarter."""
    return median(values[3 * len(values) // 4 :])


def show(soak: Soak) -> None:
    """Print what was found."""
    rows = soak.table()
    events = Counter(event for run in soak.runs for sample in run for event in sample["events"])
    timed_out = sum(count is None for _, _, count in rows)
    print(f"{soak.epochs} epochs in {len(soak.runs)} runs, {len(rows)} rows, {len(soak.calls())} calls")
    print(f"{timed_out} rows timed out, {sum(hangs(row) for row, _, _ in rows)} of them for want of an answer")
    print(", ".join(f"{event}: {times}" for event, times in sorted(events.items())) + "\n")
    _row("", "early", "late", "")
    for name, (early, late, is_level) in soak.levels().items():
        _row(name, f"{early:.0f}", f"{late:.0f}", "" if name in SHOWN else "level" if is_level else "GROWS")
    print("\n" + ("exact: outputs, state and calls" if not soak.problems else "\n".join(soak.problems)))


def dump(soak: Soak) -> None:
    """Print it for machines."""
    levels = [dict(zip(("early", "late", "is_level"), row, strict=True)) for row in soak.levels().values()]
    found = {
        "epochs": soak.epochs,
        "levels": dict(zip((*SLACK, *SHOWN), levels, strict=True)),
        "problems": soak.problems,
    }
    json.dump(found, sys.stdout, indent=2)
    print()


def _row(*cells: str) -> None:
    print("{:<22}{:>8}{:>8}  {}".format(*cells))


def soak(folder: Path, epochs: int, hours: float | None, rows_per_second: int, series: Path | None = None) -> Soak:
    """Run for so many epochs, or hours, and check what is left."""
    made = Soak(folder, rows_per_second, series)
    if hours is None:
        run_epochs = min(_RUN_EPOCHS_MAX, max(1, epochs // _RUNS))
        made.go(run_epochs, lambda soak: len(soak.runs) < epochs // run_epochs - 1)
    else:
        end = time.monotonic() + 3600 * hours
        made.go(_RUN_EPOCHS_MAX, lambda _: time.monotonic() < end)
    return made


def main() -> int:
    """Run it from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
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
        made = soak(Path(folder), options.epochs, options.hours, options.rows_per_second, options.series)
        if options.plot:
            plot(list(itertools.chain(*made.runs)), options.plot)
        (dump if options.json else show)(made)
    return 1 if made.problems else 0


if __name__ == "__main__":
    sys.exit(main())
