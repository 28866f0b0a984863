"""Flink's asynchronous operator in Java, on the jars that come with PyFlink."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path

from benchmarks.peers.cases import CALL_SECONDS, CONCURRENCY, Case, Digest
from benchmarks.peers.peer import Peer, Unavailable

SOURCE = Path(__file__).with_name("AsyncCalls.java")
# Flink looks into classes of the JDK, which has to be allowed.
OPENED = ("java.util", "java.lang", "java.time")


class Flink(Peer):
    """`AsyncDataStream.unorderedWait` in a mini-cluster of one slot."""

    title = "Flink, `AsyncDataStream` in Java"
    cases = ("enrichment",)
    requirements = ("apache-flink==2.3.0",)
    packages = ("apache-flink",)
    lacks = "functions are in Java, without keyed state; checkpoints were off"
    _java: subprocess.Popen[str] | None = None

    def versions(self) -> dict[str, str]:
        # The first line is "openjdk 17.0.15 2025-04-15".
        java = subprocess.run(
            [program("java"), "--version"], capture_output=True, text=True, check=True
        ).stdout.split()[1]
        return super().versions() | {"Java": java}

    def prepare(self, case: Case, folder: Path) -> Callable[[], Digest]:
        if self._java is None:
            self._java = start(folder)
        java = self._java

        def work() -> Digest:
            assert java.stdin is not None
            assert java.stdout is not None
            print(case.rows, round(CALL_SECONDS * 1000), CONCURRENCY, file=java.stdin, flush=True)
            return Digest(*map(int, java.stdout.readline().split()))

        return work

    def close(self) -> None:
        if self._java is not None:
            self._java.communicate()


def start(folder: Path) -> subprocess.Popen[str]:
    """Compile the program and start it; it does one job for each line that it reads."""
    jars = Path(str(files("pyflink"))) / "lib" / "*"
    subprocess.run([program("javac"), "-cp", str(jars), "-d", str(folder), str(SOURCE)], check=True)
    opened = [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in OPENED]
    command = [program("java"), *opened, "-cp", f"{jars}:{folder}", "AsyncCalls"]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def program(name: str) -> str:
    """Return the path of a program of the JDK."""
    path = shutil.which(name)
    if path is None:
        raise Unavailable(f"no {name} on the PATH; install a JDK 17")
    return path


PEER = Flink()
