"""The notebooks, executed as they stand; what they claim they assert themselves.

pytest tests/notebooks --record     stores their outputs in them
"""

from __future__ import annotations

import json
import re
import tempfile
from pathlib import Path

import nbformat
import pytest

from tests.kernel import LEAVES_SOCKETS, execute

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
STORED_BYTES_MAX = 400_000


def read(path: Path) -> nbformat.NotebookNode:
    return nbformat.read(path, as_version=nbformat.NO_CONVERT)


def write(notebook: nbformat.NotebookNode, path: Path) -> None:
    """Store it without what says only where it ran: temporary folders, the kernel's version, what Spark's JVM logs."""
    notebook.metadata = read(path).metadata
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
    text = re.sub(rf"{tempfile.gettempdir()}/tmp\w+", "/home/you/folder", nbformat.writes(notebook))
    path.write_text(f"{text.rstrip()}\n", encoding="utf-8")


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(
            path,
            id=path.stem,
            marks=[
                *([pytest.mark.spark] if "pyspark" in path.read_text() else ()),
                *([pytest.mark.thorough] if path.stem != "1-async-enrichment" else ()),
            ],
        )
        for path in NOTEBOOKS
    ],
)
@pytest.mark.timeout(2400)
@LEAVES_SOCKETS
def test_the_notebook_runs(path: Path, tmp_path: Path, pytestconfig: pytest.Config) -> None:
    executed = execute(read(path), tmp_path)
    if pytestconfig.getoption("record"):
        write(executed, path)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_stored_outputs_are_those_of_one_run(path: Path) -> None:
    """The site shows them. `test_the_notebook_runs` with `--record` stores them."""
    notebook = read(path)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    outputs = [output for cell in code for output in cell.outputs]

    nbformat.validate(notebook)
    # Of all cells, or of none: a notebook that was changed has none until it is recorded again.
    assert [cell.execution_count for cell in code] in ([*range(1, len(code) + 1)], [None] * len(code))
    # Nothing that looks like a fault, and nothing of the machine on which it ran.
    assert [output for output in outputs if output.output_type == "error" or output.get("name") == "stderr"] == []
    assert [word for word in (tempfile.gettempdir(), str(ROOT)) if word in json.dumps(outputs)] == []
    assert path.stat().st_size <= STORED_BYTES_MAX


BLOCKS = """\
import time
from async_op import AsyncDataStream
from async_op.threads.watchdog import blocking_functions

async def look(value):
    while not blocking_functions(): time.sleep(0.1)
    time.sleep(1)  # until it is shown
    return value

[output async for output in AsyncDataStream.ordered_wait([1], look)]
"""


@pytest.mark.thorough
@LEAVES_SOCKETS
def test_a_cell_whose_function_blocks_shows_the_line(tmp_path: Path) -> None:
    executed = execute(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(BLOCKS)]), tmp_path)
    shown = "".join(output.text for output in executed.cells[0].outputs if output.get("name") == "stderr")
    assert "BlocksEventLoop: __main__.look has blocked its event loop for over a second" in shown
    assert "while not blocking_functions()" in shown


def test_a_notebook_that_is_wrong_fails(tmp_path: Path) -> None:
    """That a claim which does not hold reaches pytest is what the tests above rest on."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("assert 1 == 2")])

    with pytest.raises(Exception, match="AssertionError"):
        execute(notebook, tmp_path)
