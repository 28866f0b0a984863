"""The wheel with each Spark on every supported Python: a pipeline that is killed, restarted and rescaled, on a classic
session and over Spark Connect, and the data source. Also the oldest Spark with the oldest packages allowed.

pytest tests/packaging --matrix all        what `make packaging` runs; it builds each Spark once, from 450 MB
pytest tests/packaging --matrix sample     the oldest Spark on the newest Python, as in CI
"""

from __future__ import annotations

import itertools
import os
import sys
from pathlib import Path

import pytest

from tests.packaging.conftest import ROOT, SUPPORTED, interpreter, pinned, run
from tests.spark.conftest import java

__all__ = ["java"]

SPARKS = ("4.1", "4.2", "4.3")
SUBSET = (
    # Keyed state and calls in flight; with other parallelism after the kill; operators that are resident, and in tasks.
    "tests/spark/test_kill_process.py::test_a_driver_is_killed_between_the_commit_and_the_sink",
    "tests/spark/test_resident.py::test_with_another_parallelism_only_calls_under_way_are_repeated",
    "tests/spark/test_source.py::test_a_state_is_read_as_it_is_at_every_version",
    "tests/spark/test_source.py::test_a_written_state_is_restored_by_every_parallelism",
    "tests/spark/test_transform.py::test_ordered_keeps_the_order_of_a_partition",
    "tests/spark/test_output_frames.py::test_large_types_are_those_of_the_session",
    "tests/spark/test_transform.py::test_a_streaming_frame",
    "tests/spark/test_transform.py::test_a_naive_timestamp_means_in_spark_what_the_session_shows",
    "tests/spark/test_query.py::test_a_stop_with_a_drain_repeats_no_call_of_the_micro_batch_under_way",
    "tests/spark/test_connect_pipeline.py::test_a_pipeline_is_exact_and_its_sink_rescales_it",
    "tests/spark/test_connect_pipeline.py::test_a_worker_is_killed_and_the_next_start_continues",
    "tests/spark/test_connect_pipeline.py::test_a_stop_repeats_no_finished_call_of_the_micro_batch_under_way",
)
TOOLS = ("hypothesis", "moto[server]", "pytest", "pytest-asyncio", "pytest-timeout", "s3fs")
pytestmark = pytest.mark.usefixtures("asked_for")


@pytest.mark.timeout(3000)
@pytest.mark.parametrize(
    ("spark", "version"),
    [
        pytest.param(*case, marks=pytest.mark.sample if case == (SPARKS[0], SUPPORTED[-1]) else ())
        for case in itertools.product(SPARKS, SUPPORTED)
    ],
)
def test_a_pipeline_is_exact(spark: str, version: str, wheel: Path, checkout: Path, java: None, tmp_path: Path) -> None:
    python, install = _environment(version, tmp_path)
    run([*install, f"{wheel}[spark]", f"pyspark[connect]=={spark}.*", *pinned(*TOOLS)])
    _passes(python, spark, checkout)


@pytest.mark.timeout(3000)
def test_a_pipeline_is_exact_with_the_oldest_packages(wheel: Path, checkout: Path, java: None, tmp_path: Path) -> None:
    """The lower bounds in pyproject.toml are those that work."""
    python, install = _environment(SUPPORTED[0], tmp_path)
    oldest = ["--resolution", "lowest-direct", "--requirements", ROOT / "pyproject.toml"]
    run([*install, *oldest, "--extra", "spark", "--extra", "connect", *pinned(*TOOLS)])
    run([*install, "--no-deps", wheel])
    _passes(python, SPARKS[0], checkout)


def _environment(version: str, folder: Path) -> tuple[Path, list[str | Path]]:
    """Make an environment with a Python; return that, and how to install something into it."""
    uv = [sys.executable, "-m", "uv"]
    run([*uv, "venv", "--quiet", "--python", interpreter(version), folder / "venv"])
    python = folder / "venv" / "bin" / "python"
    return python, [*uv, "pip", "install", "--quiet", "--python", python]


def _passes(python: Path, spark: str, checkout: Path) -> None:
    settings = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    versions = "import async_op, pyspark; print(async_op.__file__, pyspark.__version__)"
    found = run([python, "-c", versions], cwd=checkout, env=settings)  # only what is installed may be found
    assert "site-packages" in found
    assert found.split()[1].startswith(f"{spark}.")
    # Older Sparks leave sockets open, and Python warns of it.
    pytest_run = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "default::ResourceWarning"]
    unraisable = ["-W", "default::pytest.PytestUnraisableExceptionWarning"]
    passed = run([*pytest_run, *unraisable, *SUBSET], cwd=checkout, env=settings)
    assert " passed" in passed
    assert "skipped" not in passed
