"""The same work here and on what users would choose instead, in one table.

Every run is a process of its own that does a tenth of the work first; only the work itself is measured. The systems
take turns, and medians are reported: seconds of the wall clock, seconds of all processors (of the process and of
everything that it has started), and the most memory. Outputs must be exactly right. Systems that the project does not
depend on are installed into environments in the user's cache folder.

    python -m benchmarks.peers --only stream --only daft --case enrichment --rows 10000 --repeats 1
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from benchmarks.peers.cases import CASES, Case
from benchmarks.peers.environments import python_with
from benchmarks.peers.measuring import Result, RunFailed, run_apart
from benchmarks.peers.peer import SYSTEMS, Unavailable, load
from benchmarks.peers.table import as_markdown


def main(argv: Sequence[str] | None = None) -> int:
    """Measure what was asked for and print it; returns 1 if a run failed."""
    arguments = parsed(argv)
    if sys.platform != "linux":
        print("processor time and memory are read from /proc: this needs Linux", file=sys.stderr)
        return 2
    pythons = Pythons()
    load_before = os.getloadavg()[0]
    tables = {}
    for name in arguments.case:
        case = CASES[name].with_rows(arguments.rows or CASES[name].rows)
        systems = [system for system in arguments.only if name in load(system).cases]
        if systems:
            tables[case] = compare(case, systems, pythons, arguments.repeats)
    surroundings = {
        "processors": os.cpu_count(),
        "load_before": round(load_before, 1),
        "load_after": round(os.getloadavg()[0], 1),
        "repeats": arguments.repeats,
    }
    if arguments.json:
        cases = [
            {"case": case.title, "results": [one.as_json() for one in results]} for case, results in tables.items()
        ]
        json.dump(surroundings | {"cases": cases}, sys.stdout, indent=2)
    else:
        print(as_markdown(surroundings, tables))
    return int(any(result.failed for results in tables.values() for result in results))


def parsed(argv: Sequence[str] | None) -> argparse.Namespace:
    """Return the arguments of the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", action="append", choices=SYSTEMS, help="only this system; may be repeated")
    parser.add_argument("--case", action="append", choices=CASES, help="only this case; may be repeated")
    parser.add_argument("--rows", type=positive, help="rows or keys of each case, in place of its own number")
    parser.add_argument("--repeats", type=positive, default=3, help="runs of each system (default: 3)")
    parser.add_argument("--json", action="store_true", help="machine-readable")
    arguments = parser.parse_args(argv)
    arguments.only = arguments.only or list(SYSTEMS)
    arguments.case = arguments.case or list(CASES)
    return arguments


def positive(text: str) -> int:
    """Return a number of at least one."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is not positive")
    return number


class Pythons:
    """The interpreters of the environments, each made once."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, ...], Path | Unavailable] = {}

    def with_(self, requirements: tuple[str, ...]) -> Path:
        """Return a Python that has the requirements."""
        if requirements not in self._found:
            try:
                self._found[requirements] = python_with(requirements)
            except Unavailable as reason:
                self._found[requirements] = reason
        found = self._found[requirements]
        if isinstance(found, Unavailable):
            raise found
        return found


def compare(case: Case, systems: Iterable[str], pythons: Pythons, repeats: int) -> list[Result]:
    """Run a case on all systems that can do it, in turn, so often."""
    results = [Result(system, load(system), case) for system in systems]
    for number in range(repeats):
        for result in results:
            if result.absent is None:
                add_run(result, pythons)
                print(f"{case.name}, {number + 1} of {repeats}: {result.newest}", file=sys.stderr, flush=True)
    return results


def add_run(result: Result, pythons: Pythons) -> None:
    """Run a system once more, or note why it does not run."""
    try:
        python = pythons.with_(result.peer.requirements)
        result.runs.append(run_apart(python, result.system, result.case))
    except (Unavailable, RunFailed) as reason:
        # One failed run spoils the others: whatever fails at times has no figure.
        result.runs.clear()
        result.absent, result.failed = str(reason), isinstance(reason, RunFailed)


if __name__ == "__main__":
    sys.exit(main())
