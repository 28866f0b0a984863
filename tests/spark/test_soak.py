"""A short form of the soak: whoever changes the pipeline sees here what would only show after hours."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks._soak import ROWS_PER_SECOND, run_soak
from benchmarks.soak import PipelineSoak

EPOCHS = 30


@pytest.mark.spark
@pytest.mark.thorough
@pytest.mark.timeout(2400)
@pytest.mark.skipif(sys.platform != "linux", reason="what processes hold is read from /proc")
def test_a_pipeline_that_is_killed_stopped_and_rescaled_stays_exact_and_level(java: None, tmp_path: Path) -> None:
    made = PipelineSoak(tmp_path, ROWS_PER_SECOND)
    run_soak(made, EPOCHS, None)
    assert made.problems == []
    assert made.epochs >= EPOCHS - 1
    assert len(made.runs) == 3
    assert 0 in {sample["rows"] for run in made.runs for sample in run}, "some epochs are empty"
