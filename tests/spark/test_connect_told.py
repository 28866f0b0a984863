"""What clients of a Spark Connect server are told when something is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.spark.connect_processes import client, told

pytestmark = pytest.mark.spark


def answer(url: str, folder: Path, case: str) -> Any:
    return told(client("connect_told", url, folder, case))


def test_a_module_that_the_server_cannot_import_is_named_before_anything_is_claimed(url: str, tmp_path: Path) -> None:
    assert answer(url, tmp_path, "a module beside the script") == {"claimed": []}


def test_a_client_sees_the_lines_that_have_failed_beside_the_server(url: str, tmp_path: Path) -> None:
    reasons = answer(url, tmp_path, "tracebacks")
    assert "NameError: name 'valeu' is not defined" in reasons["function"]
    assert "OSError: the disk is full" in reasons["sink"]
    assert "OSError: the disk is full" in reasons["sink of an epoch without input"]


def test_explain_finds_an_input_whose_rows_change_when_they_are_read_again(url: str, tmp_path: Path) -> None:
    assert answer(url, tmp_path, "volatile") == {"uuid": True, "rand": True, "a name": False}
