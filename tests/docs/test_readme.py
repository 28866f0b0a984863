"""The README: short, with an example that runs as it stands; and the links of all top pages lead somewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

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


@pytest.mark.parametrize("name", ["README.md", "ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md"])
def test_links_into_the_repository_lead_somewhere(name: str) -> None:
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", (ROOT / name).read_text(encoding="utf-8"))

    assert [link for link in links if "://" not in link and not (ROOT / link).exists()] == []
