"""A short form of the soak of jobs, so that a change that breaks it fails here and not after an hour."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks._soak import ROWS_PER_SECOND, run_soak
from benchmarks.job_soak import JobSoak

EPOCHS = 75


@pytest.mark.thorough
@pytest.mark.timeout(1200)
@pytest.mark.skipif(sys.platform != "linux", reason="what processes hold is read from /proc")
def test_a_job_whose_processes_are_killed_and_that_is_rescaled_stays_exact_and_level(tmp_path: Path) -> None:
    made = JobSoak(tmp_path, ROWS_PER_SECOND)
    run_soak(made, EPOCHS, None)
    assert made.problems == []
    assert len(made.runs) == 3
    events = {event for run in made.runs for sample in run for event in sample["events"]}
    assert events >= {"child killed", "parent killed", "parent stopped"}
