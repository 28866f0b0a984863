"""Tests have the same names in every process: those who share them out by name must not lose any."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.thorough
def test_every_process_collects_the_same_tests(request: pytest.FixtureRequest) -> None:
    here = {item.nodeid for item in request.session.items}
    modules = sorted({name.partition("::")[0] for name in here})
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-n", "0", "-p", "no:randomly"]
    options = [f"--seeds={request.config.getoption('seeds')}"]
    options += ["--quick"] if request.config.getoption("quick") else []
    seed = request.config.getoption("seed")
    options += [] if seed is None else [f"--seed={seed}"]
    environment = os.environ | {"PYTHONHASHSEED": "20130101"}

    ended = subprocess.run(
        [*command, *options, *modules], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )

    assert ended.returncode == 0, ended.stdout[-2000:]
    assert here - set(ended.stdout.splitlines()) == set()
