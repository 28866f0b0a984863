"""What `make bench BENCH_ARGS=…` hands to every benchmark."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"
BENCHMARKS = sorted(path.stem for path in FOLDER.glob("[!_]*.py") if not path.stem.endswith("soak"))


@pytest.mark.thorough
@pytest.mark.parametrize("name", BENCHMARKS)
def test_a_benchmark_tells_its_options_without_measuring(name: str) -> None:
    command = [sys.executable, "-m", f"benchmarks.{name}", "--help"]
    told = subprocess.run(command, cwd=FOLDER.parent, capture_output=True, text=True, timeout=120, check=True).stdout
    assert "--json" in told
    assert "--repeats" in told
