"""Runs pytest, and ends every process that its tests leave behind: ``python -m tests.run ARGUMENTS OF PYTEST``.

Tests start JVMs, brokers, servers and hosts. After Ctrl-C, or when xdist kills a worker, no fixture ends them: JVMs of
320 MB stayed for half an hour. On Linux such orphans become children of this process, which ends them after pytest.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from tests import preflight

_PR_SET_CHILD_SUBREAPER = 36
_ENVIRONMENT_IS_WRONG = 4  # pytest's own exit code for wrong usage


def main(arguments: list[str]) -> int:
    """Run pytest in a process of its own; return its exit code."""
    if complaints := preflight.complaints():
        print("The tests cannot run on this machine:", *complaints, sep="\n- ", file=sys.stderr)  # noqa: T201
        return _ENVIRONMENT_IS_WRONG
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    # The terminal sends Ctrl-C to pytest, too; this process only waits for pytest to end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    pytest = subprocess.Popen([sys.executable, "-m", "pytest", *arguments], preexec_fn=_respect_interrupts)
    signal.signal(signal.SIGTERM, lambda *_: pytest.send_signal(signal.SIGINT))
    code = _reap_until(pytest.pid)
    end_children()
    return code


def _respect_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _reap_until(pid: int) -> int:
    """Wait for a child, and reap orphans meanwhile: some tests wait until a process has gone, also as a zombie."""
    while True:
        ended, status = os.wait()
        if ended == pid:
            return os.waitstatus_to_exitcode(status)


def end_children() -> None:
    """Kill the children of this process until none is left; the orphans of each become children in turn."""
    while children := _children():
        for pid in children:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid in children:
            with suppress(ChildProcessError):
                os.waitpid(pid, 0)


def _children() -> list[int]:
    listed = Path(f"/proc/self/task/{os.getpid()}/children")
    return [int(pid) for pid in listed.read_text().split()] if listed.exists() else []


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
