"""The catalogue of behaviours is complete, and its tests exist."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.operator.catalogue import CATALOGUE, Behaviour

ROWS = [(section, row) for section, rows in CATALOGUE.items() for row in rows]


@pytest.fixture(scope="module")
def collected() -> set[str]:
    """The tests that pytest finds in this folder, as "module::function"."""
    folder = Path(__file__).parent
    command = [sys.executable, "-m", "pytest", "--collect-only", "--quiet", str(folder)]
    listed = subprocess.run(command, cwd=folder.parents[1], capture_output=True, text=True, check=True).stdout
    ids = (line.partition("[")[0] for line in listed.splitlines() if "::" in line)
    return {f"{Path(path).stem}::{name}" for path, _, name in (one.partition("::") for one in ids)}


def test_every_behaviour_has_a_test_or_a_reason_to_have_none() -> None:
    def is_covered(row: Behaviour) -> bool:
        return bool(row.tests) != bool(row.absent)

    assert [(section, row.what) for section, row in ROWS if not is_covered(row)] == []


def test_every_test_of_the_catalogue_is_collected(collected: set[str]) -> None:
    named = {test for _, row in ROWS for test in row.tests}

    assert sorted(named - collected) == []


def test_no_test_is_named_twice_for_one_behaviour() -> None:
    assert [row.what for _, row in ROWS if len(set(row.tests)) < len(row.tests)] == []
