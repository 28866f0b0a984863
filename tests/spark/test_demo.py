"""The demo, small: real flights, a killed driver, rescales, and the comparison with a batch job."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from demo.compare import batch_job, compare, damaged, delivered_rows
from demo.workspace import Workspace

ROOT = Path(__file__).parents[2]
FLIGHTS = 5_000

# The limit is for the run of the demo, which belongs to the test that comes first.
pytestmark = [pytest.mark.timeout(2400), pytest.mark.thorough]


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Path:
    folder = tmp_path_factory.mktemp("demo")
    ended = subprocess.run(
        [sys.executable, "-m", "demo", "--flights", str(FLIGHTS), "--output", str(folder), "--keep"],
        cwd=ROOT,
        env=os.environ | {"PYTHONWARNINGS": "default"},
        capture_output=True,
        text=True,
        timeout=2000,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout[-4000:] + ended.stderr[-4000:]
    return folder


def test_every_flight_comes_out_once_and_right(played: Path) -> None:
    assert json.loads((played / "comparison.json").read_text()) == {
        "expected": FLIGHTS,
        "delivered": FLIGHTS,
        "different": 0,
        "examples": [],
    }
    assert (played / "timeline.png").read_bytes().startswith(b"\x89PNG")


def test_the_driver_was_killed_with_calls_in_flight_and_continued_with_another_parallelism(played: Path) -> None:
    inspected = subprocess.run(
        [
            sys.executable,
            "-c",
            "from snapshots.cli import main; main()",
            "inspect",
            str(Workspace(played).operator),
            "--json",
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
        check=True,
    )
    newest = json.loads(inspected.stdout)
    assert newest["parallelism"] == 3
    summary: dict[str, Any] = json.loads((played / "summary.json").read_text())
    before, after = summary["parallelism_of_epochs"][:2], summary["parallelism_of_epochs"][2:]
    assert set(before) == {3}
    assert list(dict.fromkeys(after[after.index(2) :])) == [2, 4, 3], "on the fly, in one run"
    assert summary["flights"] == summary["rows_delivered"] == FLIGHTS
    assert summary["reinvoked_before_crash"] == 0
    assert 0 < summary["reinvoked_after_crash"] <= summary["in_flight_at_crash"]
    assert summary["calls_made"] >= FLIGHTS


@pytest.mark.parametrize(
    ("damage", "verdict"), [("drop", "not delivered"), ("double", "delivered 2 times"), ("change", "expected")]
)
def test_the_comparison_sees_damage(played: Path, spark: SparkSession, damage: str, verdict: str) -> None:
    workspace = Workspace(played)
    comparison = compare(batch_job(spark, workspace), damaged(delivered_rows(spark, workspace), damage))
    assert not comparison.equal
    assert comparison.different == 1
    assert verdict in comparison.examples[0]
