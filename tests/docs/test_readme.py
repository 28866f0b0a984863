"""The README: short, and its example runs as it stands."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
WORDS_MAX = 600


def test_it_can_be_read_in_three_minutes() -> None:
    assert len(README.split()) <= WORDS_MAX


def test_the_example_prints_what_it_found_each_time(tmp_path: Path) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    (tmp_path / "example.py").write_text(example)
    for _ in range(2):
        ended = subprocess.run(
            [sys.executable, "example.py"],
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=1000,
            check=False,
        )
        assert ended.stdout == "user 49, visit 2\n", ended.stderr[-4000:]
