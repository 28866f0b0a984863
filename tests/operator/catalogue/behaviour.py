"""A row of the catalogue."""

from __future__ import annotations

from typing import NamedTuple


class Behaviour(NamedTuple):
    """One behaviour and its tests, each as "module::function" below `tests/operator`."""

    what: str
    tests: tuple[str, ...] = ()
    differs: str = ""
    absent: str = ""


def shown_in(module: str, *names: str) -> tuple[str, ...]:
    return tuple(f"test_{module}::test_{name}" for name in names)
