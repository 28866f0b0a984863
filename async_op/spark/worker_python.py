"""Whether the Python of Spark's workers can run a function: the executable, and the modules that the function needs."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any, NamedTuple

from pyspark import SparkContext, SparkFiles
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from async_op.spark.errors import ModuleNotOnWorkers, UnsuitableWorkerPython
from async_op.spark.task.pickling import modules_imported_by, pickled
from keygroups.errors import KeyGroupsError
from keygroups.spark.session import choose_python, is_elsewhere

_log = logging.getLogger(__package__)

_LIBRARY = ("async_op", "pyarrow")
"""What the workers must be able to import, whatever the function is."""

_PROBE = """
import importlib.util, json, sys
def is_missing(name):
    try:
        return importlib.util.find_spec(name) is None
    except Exception:
        return True
print(json.dumps([list(sys.version_info[:2]), [name for name in sys.argv[1:] if is_missing(name)]]))
"""

_PROBE_SECONDS = 60.0
"""An interpreter answers within a fraction of a second; one that hangs must not hold up the start for ever."""


class _Workers(NamedTuple):
    """How Spark starts Python workers on this machine."""

    python: str
    path: str
    folder: str


_sound: set[tuple[_Workers, frozenset[str]]] = set()
"""What has been probed and found sound: a program may make a transform many times."""


def check_workers(spark: SparkSession, function: object) -> None:
    """Check that the workers can run a function, with all that belongs to it.

    On a local master only: elsewhere nothing is known before a task runs. If no Python was chosen for the workers,
    they get the driver's, because what `python3` means depends on the `PATH`.

    Raises
    ------
    UnsuitableWorkerPython
        The workers' Python is of another version, or lacks the library.
    ModuleNotOnWorkers
        The workers cannot import a module that the function needs.
    """
    if is_elsewhere(spark):
        return
    choose_python(spark)
    context = spark.sparkContext
    workers, needed = _workers_of(context), _not_installed(modules_imported_by(function))
    if workers.python != sys.executable:
        needed |= {*_LIBRARY}
    elif not needed:
        return
    if (workers, needed) not in _sound:
        _probe(workers, needed)
        _sound.add((workers, needed))


def failure_in_a_task(spark: SparkSession, function: object) -> str | None:
    """Run one task that loads a function, and return why it cannot; None if it can."""
    data = pickled(function)

    def load(batches: Any) -> Any:  # a nested function is pickled by value: it must run without the library
        import pickle

        import pyarrow as pa

        try:
            pickle.loads(data)  # noqa: S301 - pickled by the driver
            failure = None
        except Exception as error:  # noqa: BLE001 - returned to the driver
            failure = f"{type(error).__name__}: {error}"
        yield from (pa.RecordBatch.from_pydict({"failure": [failure] * batch.num_rows}) for batch in batches)

    try:
        (row,) = spark.range(0, 1, 1, 1).mapInArrow(load, "failure string").collect()
    except PySparkException as error:
        return str(error).strip().splitlines()[-1]
    failure: str | None = row["failure"]
    return failure


def module_not_found(text: str) -> KeyGroupsError | None:
    """Return the error that names the module of a `ModuleNotFoundError` in the text of a worker's error."""
    _, found, rest = text.partition("ModuleNotFoundError: No module named '")
    name = rest.partition("'")[0].partition(".")[0]
    if not found:
        return None
    if name in _LIBRARY:
        return UnsuitableWorkerPython("a Python", f"cannot import {name}")
    return ModuleNotOnWorkers(name, _place_of(name))


def _workers_of(context: SparkContext) -> _Workers:
    """Return how a worker is started, with the search path that Spark gives it."""
    jvm: Any = context._jvm
    root = SparkFiles.getRootDirectory()
    sent = [str(one) for one in Path(root).iterdir()]  # archives and folders among them are on the path, too
    given = jvm.java.lang.System.getenv("PYTHONPATH")
    parts = [
        jvm.org.apache.spark.api.python.PythonUtils.sparkPythonPath(),
        context.environment.get("PYTHONPATH"),
        given,
        root,
        *sent,
    ]
    folder = str(jvm.java.lang.System.getProperty("user.dir"))
    return _Workers(context.pythonExec, os.pathsep.join(filter(None, parts)), folder)


def _probe(workers: _Workers, needed: frozenset[str]) -> None:
    """Start the workers' Python, and ask it what it can import."""
    command = [workers.python, "-c", _PROBE, *sorted(needed)]
    environment = {**os.environ, "PYTHONPATH": workers.path}
    try:
        answer = subprocess.run(
            command, capture_output=True, check=True, cwd=workers.folder, env=environment, timeout=_PROBE_SECONDS
        )
        version, missing = json.loads(answer.stdout)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise UnsuitableWorkerPython(workers.python, f"does not run: {error}") from error
    if tuple(version) != sys.version_info[:2]:
        own = ".".join(map(str, sys.version_info[:2]))
        reason = f"is Python {version[0]}.{version[1]}, while the driver's is {own}"
        raise UnsuitableWorkerPython(workers.python, reason)
    for name in missing:
        if name in _LIBRARY:
            raise UnsuitableWorkerPython(workers.python, f"cannot import {name}")
        raise ModuleNotOnWorkers(name, _place_of(name))


def _not_installed(names: set[str]) -> frozenset[str]:
    """Leave out the modules that come with Python or are installed: every process of this Python can import them."""
    installed = tuple(sysconfig.get_path(name) for name in ("purelib", "platlib"))
    local = names - sys.stdlib_module_names - {"__main__", "keygroups", "snapshots", *_LIBRARY}
    return frozenset(name for name in local if not _place_of(name).startswith(installed))


def _place_of(name: str) -> str:
    """Return the file of a module, or the folder of a package."""
    module = sys.modules.get(name)
    if module is None:
        return f"{name}.py"
    file = getattr(module, "__file__", None)
    if file is None:
        return next(iter(getattr(module, "__path__", ())), f"{name}.py")
    return str(Path(file).parent) if hasattr(module, "__path__") else str(file)
