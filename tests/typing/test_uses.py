"""Wrong uses of what is public are errors for the type checker, and right ones are not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
USES = Path(__file__).with_name("uses.py")


def check(source: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--follow-imports=silent"]
    return subprocess.run([*command, str(source)], cwd=ROOT, capture_output=True, text=True, check=False)


def test_wrong_uses_are_errors_and_right_ones_are_not() -> None:
    ended = check(USES)

    assert (ended.returncode, ended.stdout) == (0, "")


def test_pyright_sees_the_same_types() -> None:
    # Without the path it would look at the installed packages, where an environment is shared by several checkouts.
    here = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, str(USES)]
    ended = subprocess.run(command, cwd=ROOT, env=here, capture_output=True, text=True, check=False)

    assert ended.returncode == 0, ended.stdout


def test_a_wrong_use_that_passes_would_be_found(tmp_path: Path) -> None:
    changed = tmp_path / "uses.py"
    changed.write_text(USES.read_text(encoding="utf-8").replace('mode="sorted"', 'mode="ordered"'), encoding="utf-8")

    assert "unused-ignore" in check(changed).stdout
