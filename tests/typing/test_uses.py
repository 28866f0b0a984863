"""Wrong uses of what is public are errors for type checkers, and right ones are not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
USES = Path(__file__).with_name("uses.py")

CHECKERS = {
    # Without the path it would look at the installed packages, where an environment is shared by several checkouts.
    "pyright": ["--pythonpath", sys.executable],
    "mypy": ["--strict", "--follow-imports=silent"],
}


@pytest.mark.thorough
@pytest.mark.parametrize("checker", ["pyright", "mypy"])
def test_right_uses_are_no_errors_wrong_ones_are_and_one_that_passes_would_be_found(
    checker: str, tmp_path: Path
) -> None:
    """In one run: a checker looks at all packages for either file."""
    passing = tmp_path / "passing.py"
    passing.write_text(USES.read_text(encoding="utf-8").replace('mode="sorted"', 'mode="ordered"'), encoding="utf-8")
    command = [sys.executable, "-m", checker, *CHECKERS[checker], str(USES), str(passing)]
    here = os.environ | {"PYTHONPATH": str(ROOT)}
    printed = subprocess.run(command, cwd=ROOT, env=here, capture_output=True, text=True, check=False).stdout

    (found,) = (line for line in printed.splitlines() if " error: " in line)
    assert f"{passing.name}:" in found  # mypy remembers what it has said of an equal file elsewhere
    assert "type: ignore" in found
