"""How the tests are run: on a machine that can run them, and without leaving a process behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import namedtuple
from pathlib import Path

import pytest

from snapshots.java import JavaNotFound
from tests import preflight
from tests.quick import first_is_quick
from tests.spark.conftest import java

__all__ = ["java"]

ROOT = Path(__file__).parents[1]
LEAVING = """
import subprocess
from pathlib import Path
def test_leaves_an_orphan():
    pid = subprocess.run(["sh", "-c", "sleep 1000 >/dev/null 2>&1 & echo $!"], capture_output=True, text=True).stdout
    Path("{pipe}").write_text(pid)
    {then}
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs a subreaper")
@pytest.mark.parametrize(
    "then", first_is_quick(["import time; time.sleep(1000)", "pass"]), ids=["after Ctrl-C", "at its end"]
)
def test_a_run_leaves_no_process_behind(then: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "test_leaving.py").write_text(LEAVING.format(pipe=tmp_path / "pipe", then=then))
    command = [sys.executable, "-m", "tests.run", "-q", "-p", "no:cacheprovider", "--rootdir", tmp_path, tmp_path]
    run = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    orphan = int((tmp_path / "pipe").read_text())
    if then != "pass":
        os.killpg(run.pid, signal.SIGINT)

    assert run.wait(600) == (0 if then == "pass" else 2)
    with pytest.raises(ProcessLookupError):
        os.kill(orphan, 0)


def test_a_machine_that_can_run_the_tests_has_no_complaints(java: None) -> None:
    assert preflight.complaints() == []


def test_each_thing_that_is_missing_is_named_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_java() -> None:
        raise JavaNotFound(())

    monkeypatch.setattr(preflight, "use_java", no_java)
    monkeypatch.setattr(preflight, "find_spec", lambda name: None)
    usage = namedtuple("usage", "free")
    monkeypatch.setattr(preflight.shutil, "disk_usage", lambda folder: usage(1))

    packages, java, disk = preflight.complaints()
    assert "make .venv/.dev" in packages
    assert "make java" in java
    assert "TMPDIR" in disk
