from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.browser import browser
from tests.docs.pages import ROOT
from tests.spark.conftest import java

__all__ = ["browser", "java"]


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build it; a link into nowhere, or a docstring that cannot be read, is an error."""
    folder = tmp_path_factory.mktemp("site")
    ended = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT), "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=1000,
    )
    assert ended.returncode == 0, ended.stderr[-4000:]
    return folder
