"""A child process of the demo with everything that it starts: a driver, its JVM, its Python workers."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

_TAIL_LINES = 30
_REPOSITORY = Path(__file__).parent.parent


class ChildFailed(Exception):
    """A child process ended with an error, or too early.

    Attributes
    ----------
    log : Path
        What it said.
    """

    def __init__(self, what: str, log: Path) -> None:
        self.log = log
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-_TAIL_LINES:])
        super().__init__(f"{what}; the end of {log}:\n{tail}")


class Child:
    """A module of the demo that runs in a process group of its own; leaving the context kills what is left of it.

    Parameters
    ----------
    module : str
        Name below `demo`.
    arguments : sequence of str
        Its command line.
    log : Path
        Where its output goes.
    scratch : Path
        Folder for its temporary files; what a killed process cannot remove is removed with it.
    """

    def __init__(self, module: str, arguments: Sequence[str], log: Path, scratch: Path) -> None:
        self._command = [sys.executable, "-m", f"demo.{module}", *arguments]
        self._name = module
        self._log = log
        self._scratch = scratch

    def __enter__(self) -> Self:
        # Spark's Python workers import the function from here, wherever the demo was started.
        path = os.pathsep.join([str(_REPOSITORY), *filter(None, [os.environ.get("PYTHONPATH")])])
        self._scratch.mkdir(exist_ok=True)
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PYTHONPATH": path, "TMPDIR": str(self._scratch)},
                start_new_session=True,
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.kill()
        # A JVM that shuts down may be removing files there at the same time.
        shutil.rmtree(self._scratch, ignore_errors=True)

    def kill(self) -> None:
        """SIGKILL the driver and its JVM; Spark's Python workers end when their JVM is gone."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def wait(self) -> int:
        """Wait for its end.

        Returns
        -------
        int
            The exit code.
        """
        return self._process.wait()

    def is_running(self) -> bool:
        """Whether it runs still.

        Raises
        ------
        ChildFailed
            It ended with an error.
        """
        code = self._process.poll()
        if code:
            raise ChildFailed(f"the {self._name} process ended with exit code {code}", self._log)
        return code is None

    def ended_early(self) -> ChildFailed:
        """Build the error for an end that came before it should."""
        return ChildFailed(f"the {self._name} process ended before it could be killed", self._log)
