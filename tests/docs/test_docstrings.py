"""The examples in docstrings, of which the reference is made."""

from __future__ import annotations

import doctest
import importlib
import threading
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MODULES = sorted(
    str(path.relative_to(ROOT)).removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    for package in ("keygroups", "snapshots", "async_op")
    for path in (ROOT / package).rglob("*.py")
    if ">>> " in path.read_text(encoding="utf-8") and "spark" not in path.relative_to(ROOT).with_suffix("").parts
)
# What a reader of an example has imported: the public names, and `threading` for callbacks.
NAMES = {"threading": threading} | {
    name: getattr(module, name)
    for module in map(importlib.import_module, ("keygroups", "snapshots", "async_op"))
    for name in module.__all__
}


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_the_module_hold(name: str) -> None:
    module = importlib.import_module(name)

    found = doctest.testmod(module, extraglobs={k: v for k, v in NAMES.items() if not hasattr(module, k)})

    assert found.failed == 0, f"{found.failed} of {found.attempted} examples: see the output above"
