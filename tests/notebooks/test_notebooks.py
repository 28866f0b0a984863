"""The notebooks, executed as they stand; what they claim they assert themselves."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def read(path: Path) -> nbformat.NotebookNode:
    return nbformat.read(path, as_version=nbformat.NO_CONVERT)


@contextmanager
def imports_from(folder: Path) -> Iterator[None]:
    """Let kernels import the packages of this working tree; for the threads of this process it changes nothing."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)
        yield


def execute(path: Path, folder: Path) -> None:
    where = {"metadata": {"path": str(folder)}}
    client = NotebookClient(read(path), timeout=600, startup_timeout=600, kernel_name="python3", resources=where)
    with imports_from(ROOT):
        client.execute()


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, id=path.stem, marks=pytest.mark.spark if "pyspark" in path.read_text() else ())
        for path in NOTEBOOKS
    ],
)
@pytest.mark.timeout(2400)
# The client of the kernel leaves its sockets to the garbage collector.
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_the_notebook_runs(path: Path, tmp_path: Path) -> None:
    execute(path, tmp_path)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_no_output_is_stored(path: Path) -> None:
    notebook = read(path)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]

    assert [cell.id for cell in code if cell.outputs or cell.execution_count is not None] == []
    nbformat.validate(notebook)


def test_a_notebook_that_is_wrong_fails(tmp_path: Path) -> None:
    """That a claim which does not hold reaches pytest is what the tests above rest on."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("assert 1 == 2")])
    nbformat.write(notebook, tmp_path / "wrong.ipynb")

    with pytest.raises(Exception, match="AssertionError"):
        execute(tmp_path / "wrong.ipynb", tmp_path)
