"""Wrong uses of what is public are errors for the type checker, and right ones are not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
USES = Path(__file__).with_name("uses.py")


def test_wrong_uses_are_errors_and_a_wrong_use_that_passes_would_be_found(tmp_path: Path) -> None:
    """In one run: mypy looks at all packages for either file."""
    passing = tmp_path / "passing.py"
    passing.write_text(USES.read_text(encoding="utf-8").replace('mode="sorted"', 'mode="ordered"'), encoding="utf-8")
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--follow-imports=silent"]
    ended = subprocess.run([*command, str(USES), str(passing)], cwd=ROOT, capture_output=True, text=True, check=False)

    (found,) = ended.stdout.splitlines()
    assert found.startswith(str(passing))
    assert "unused-ignore" in found


def test_pyright_sees_the_same_types() -> None:
    # Without the path it would look at the installed packages, where an environment is shared by several checkouts.
    here = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, str(USES)]
    ended = subprocess.run(command, cwd=ROOT, env=here, capture_output=True, text=True, check=False)

    assert ended.returncode == 0, ended.stdout
