"""The types of everything public are known to every type checker, not only guessed by some."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def public_names(package: str) -> set[str]:
    """Return what a package exports, under the names of the modules that define it."""
    module = importlib.import_module(package)
    public = [(name, getattr(module, name)) for name in module.__all__]
    return {f"{getattr(one, '__module__', package)}.{getattr(one, '__qualname__', name)}" for name, one in public}


@pytest.mark.thorough
@pytest.mark.parametrize("package", ["keygroups", "snapshots", "async_op", "async_op.connectors", "async_op.testing"])
def test_public_types_are_complete(package: str) -> None:
    command = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, "--ignoreexternal", "--outputjson"]
    # Pyright does not look for packages in the folder of an editable installation if its environment lies within.
    here = os.environ | {"PYTHONPATH": str(ROOT)}
    command += ["--verifytypes", package]
    ended = subprocess.run(command, cwd=ROOT, env=here, capture_output=True, text=True, check=False)
    symbols = json.loads(ended.stdout)["typeCompleteness"]["symbols"]
    names = public_names(package)

    def is_public(symbol: str) -> bool:
        return any(symbol == name or symbol.startswith(f"{name}.") for name in names)

    found = [one for one in symbols if is_public(one["name"])]
    # What is only partially known because it refers to something internal is that one's matter.
    incomplete = [
        (one["name"], told["message"])
        for one in found
        for told in one.get("diagnostics", [])
        if told["severity"] == "error" and "partially unknown" not in told["message"]
    ]
    assert len(found) >= len(names)
    assert incomplete == []
