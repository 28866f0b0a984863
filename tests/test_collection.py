"""Which tests run: the same ones in every process, and if the run is quick some cases of each."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.quick import some_of

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


@given(st.lists(st.text(max_size=3), unique=True, max_size=40), st.randoms(use_true_random=False))
def test_of_many_cases_an_eighth_is_kept_but_three_at_least_whatever_their_order(
    cases: list[str], chance: Random
) -> None:
    kept = some_of(cases)
    assert set(kept) <= set(cases)
    assert len(kept) == min(len(cases), max(3, len(cases) // 8))
    chance.shuffle(cases)
    assert some_of(cases) == kept


@pytest.mark.thorough
def test_a_quick_run_has_cases_of_every_test_that_is_not_thorough() -> None:
    def collected(*options: str) -> Counter[str]:
        command = [
            sys.executable,
            "-m",
            "pytest",
            "--collect-only",
            "-q",
            "-n",
            "0",
            *options,
            "tests/keygroups",
            "tests/docs",
        ]
        ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        return Counter(line.partition("[")[0] for line in ended.stdout.splitlines() if "::" in line)

    everything, quick = collected("-m", "not thorough"), collected("--quick")
    assert quick.keys() == everything.keys()
    for test, count in everything.items():
        assert quick[test] in {count, max(3, count // 8)}
    assert quick.total() < everything.total()
    every_case = "tests/docs/test_what_if.py::test_a_row_is_shown_by_tests_that_exist"
    assert quick[every_case] == everything[every_case]
