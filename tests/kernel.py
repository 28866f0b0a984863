"""A Jupyter kernel, for tests of what notebooks do and show."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).parents[1]

LEAVES_SOCKETS = pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)
"""The client of the kernel leaves its sockets to the garbage collector."""


@contextmanager
def imports_from(folder: Path) -> Iterator[None]:
    """Let kernels import the packages of this working tree; for the threads of this process it changes nothing."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)
        yield


class Client(NotebookClient):
    """Keeps what the kernel has published, also what a later message replaces."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.published: list[tuple[str, dict[str, Any]]] = []

    def process_message(self, msg: dict[str, Any], cell: nbformat.NotebookNode, cell_index: int) -> Any:
        self.published.append((msg["msg_type"], msg["content"]))
        return super().process_message(msg, cell, cell_index)


def client_of(notebook: nbformat.NotebookNode, folder: Path) -> Client:
    return Client(
        notebook,
        timeout=600,
        startup_timeout=600,
        kernel_name="python3",
        resources={"metadata": {"path": str(folder)}},
        record_timing=False,
    )


def execute(notebook: nbformat.NotebookNode, folder: Path) -> nbformat.NotebookNode:
    """Return the notebook with its outputs."""
    with imports_from(ROOT):
        return client_of(notebook, folder).execute()
