"""Where the line of `show_progress` is seen: in the output of a cell, and on a terminal."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from tests.kernel import LEAVES_SOCKETS, ROOT, client_of, imports_from

JOB = """
from async_op import Job, Step
from async_op.connectors import Sink

class Numbers(Sink):
    async def write(self, values, epoch):
        pass

async def same(value):
    return [value]

job = Job(range(1200), Step(same, "same"), Numbers(), snapshots="memory://here", job_id="numbers")
await job.run(show_progress=True)
"""
WITHOUT_RICH = 'import sys; sys.modules["rich"] = None'
ENDED = "numbers: ended, 1,200 in, 0 in flight, 1,200 out, snapshot"


@LEAVES_SOCKETS
def test_in_a_notebook_one_line_moves_and_the_last_one_stays(tmp_path: Path) -> None:
    cells = [nbformat.v4.new_code_cell(source) for source in (WITHOUT_RICH, JOB)]
    client = client_of(nbformat.v4.new_notebook(cells=cells), tmp_path)
    with imports_from(ROOT):
        executed = client.execute()

    (output,) = executed.cells[-1].outputs  # and nothing beside it: no warning, no box
    assert output.output_type == "display_data"
    assert output.data["text/plain"].startswith(ENDED)
    shown = [kind for kind, _ in client.published if kind.endswith("display_data")]
    assert shown[:2] == ["display_data", "update_display_data"]
    assert shown.count("display_data") == 1
    lines = [content["data"]["text/plain"] for kind, content in client.published if kind.endswith("display_data")]
    assert lines[0] != lines[-1]
    assert all(line.startswith("numbers: ") for line in lines)


@pytest.mark.thorough
def test_ipython_on_a_terminal_is_no_notebook(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "IPython", "--simple-prompt", "-c", JOB],
        env=os.environ | {"PYTHONPATH": str(ROOT), "IPYTHONDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )

    assert ENDED in done.stderr
    assert done.stdout == ""
