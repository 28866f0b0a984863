"""One measured run of one system, in a process of its own: `python -m benchmarks.peers.child SYSTEM CASE ROWS FOLDER`.

A tenth of the work is done first, to warm up. What is started and prepared before each of the two is not measured.
The measurement goes into `FOLDER/result.json`.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.peers.cases import CASES, Case, Digest
from benchmarks.peers.peer import Peer, Unavailable, load
from benchmarks.peers.process_tree import adopt_orphans, cpu_seconds_of, kill_descendants

RESULT = "result.json"


class WrongOutputs(Exception):
    """A system lost, repeated or changed outputs."""


def main() -> None:
    """Run the work and write what it took."""
    system, case_name, rows, folder = sys.argv[1:]
    case = CASES[case_name].with_rows(int(rows))
    adopt_orphans()
    peer = load(system)
    try:
        run_once(peer, case.warm_up(), Path(folder) / "warm-up")
        result = run_once(peer, case, Path(folder) / "measured") | {"versions": peer.versions()}
    except Unavailable as reason:
        result = {"unavailable": str(reason)}
    finally:
        peer.close()
        kill_descendants(os.getpid())
    (Path(folder) / RESULT).write_text(json.dumps(result), encoding="utf-8")


def run_once(peer: Peer, case: Case, folder: Path) -> dict[str, Any]:
    """Run a case; returns the seconds that it took, of the wall clock and of all processors."""
    folder.mkdir()
    run = peer.prepare(case, folder)
    cpu_before, started = cpu_seconds_of(os.getpid()), time.perf_counter()
    outcome = run()
    seconds, cpu_seconds = time.perf_counter() - started, cpu_seconds_of(os.getpid()) - cpu_before
    check(outcome if isinstance(outcome, Digest) else Digest.of(outcome), Digest.of(case.outputs()))
    return {"seconds": seconds, "cpu_seconds": cpu_seconds}


def check(found: Digest, wanted: Digest) -> None:
    """Refuse outputs that are not exactly the right ones."""
    if found != wanted:
        raise WrongOutputs(f"the outputs come to {found}, where {wanted} is right")


if __name__ == "__main__":
    main()
