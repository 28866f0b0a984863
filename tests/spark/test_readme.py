"""The README's examples, run as they stand."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from keygroups.java import use_java

ROOT = Path(__file__).parents[2]
EXAMPLES = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)


@pytest.mark.parametrize("example", EXAMPLES, ids=["in process", "data frame", "pipeline", "state"])
def test_example_runs(example: str, tmp_path: Path) -> None:
    use_java()
    activated = {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    (tmp_path / "example.py").write_text(example)
    ended = subprocess.run(
        [sys.executable, "example.py"],
        cwd=tmp_path,
        env=os.environ | activated,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-4000:]
