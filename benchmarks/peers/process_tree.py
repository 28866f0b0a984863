"""What a process and all that it has started use of the machine, read from Linux's /proc."""

from __future__ import annotations

import ctypes
import os
import signal
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Process:
    """A process, with the processor time of itself and of the children that it has waited for."""

    pid: int
    parent: int
    cpu_seconds: float


def adopt_orphans() -> None:
    """Make this process the parent of all descendants whose parent ends, so that none leaves the tree."""
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "the kernel does not let this process adopt orphans")


def processes_of(root: int) -> list[Process]:
    """Return the process and all its descendants."""
    by_parent: dict[int, list[Process]] = defaultdict(list)
    found = []
    for process in _all_processes():
        by_parent[process.parent].append(process)
        if process.pid == root:
            found.append(process)
    for process in found:
        found += by_parent[process.pid]
    return found


def cpu_seconds_of(root: int) -> float:
    """Return the processor time, user and system, that the tree has used so far."""
    return sum(process.cpu_seconds for process in processes_of(root))


def memory_bytes_of(root: int) -> int:
    """Return the memory of the tree, with each page that several processes share counted once."""
    return sum(_proportional_bytes(process.pid) for process in processes_of(root))


def kill_descendants(root: int) -> None:
    """Kill all that the process has started, but not itself."""
    for process in processes_of(root)[1:]:
        try:
            os.kill(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


def _all_processes() -> list[Process]:
    processes = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                text = (entry / "stat").read_text(encoding="utf-8", errors="replace")
            except (FileNotFoundError, ProcessLookupError):
                continue  # It has ended since the folder was listed.
            # The name of the program, in brackets, may hold anything; what follows is numbers (see `man 5 proc`).
            fields = text.rpartition(")")[2].split()
            ticks = sum(map(int, fields[11:15]))
            processes.append(Process(int(entry.name), int(fields[1]), ticks / _TICKS_PER_SECOND))
    return processes


def _proportional_bytes(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return 0  # It has ended, or is about to.
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
