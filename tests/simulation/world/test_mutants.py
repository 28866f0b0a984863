"""Each defence is taken out on purpose, and a world notices it.

The table of the documentation is made of the promises: `pytest tests/simulation/world --record` writes it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.simulation.world.promises import MUTANTS, PROMISES, WORLDS, Mutant, Promise
from tests.simulation.world.world import simulate

TESTS = Path(__file__).parents[2]
PAGE = TESTS.parent / "docs" / "explanation" / "guarantees.md"
BEGIN, END = "<!-- made by tests/simulation/world/test_mutants.py -->", "<!-- end -->"
_OTHER_SEEDS = 200


@pytest.mark.thorough
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_defence_that_is_taken_out_is_missed(mutant: Mutant) -> None:
    assert is_missed(mutant, mutant.seed), f"{mutant.name} survives seed {mutant.seed}{other_seed(mutant)}"


@pytest.mark.thorough
@pytest.mark.parametrize("world", WORLDS, ids=str)
def test_a_world_that_misses_a_defence_is_sound_with_it(world: tuple[int, tuple[str, ...], bool | None]) -> None:
    seed, kinds, on_disk = world
    simulate(seed, frozenset(kinds), on_disk=on_disk)


def is_missed(mutant: Mutant, seed: int) -> bool:
    """Return whether the world of a seed fails without a defence."""
    with pytest.MonkeyPatch.context() as patch:
        mutant.break_it(patch)
        try:
            simulate(seed, mutant.kinds, on_disk=mutant.on_disk)
        except Exception:  # noqa: BLE001 - whatever it is, the test of the seed would have failed
            return True
    return False


def other_seed(mutant: Mutant) -> str:
    """Return what to write in place of a seed that no longer notices a mutant, as it happens when the code changes."""
    found = (seed for seed in range(_OTHER_SEEDS) if is_missed(mutant, seed))
    return f"; the first seed that notices it is {next(found, None)}"


def table(promises: Iterable[Promise]) -> str:
    """Return the rows of one section of the page."""
    lines = ["| what goes wrong | what becomes of it | shown by |", "| --- | --- | --- |"]
    lines += [f"| {promise.fault} | {promise.outcome} | {shown_by(promise)} |" for promise in promises]
    return "\n".join(lines) + "\n"


def shown_by(promise: Promise) -> str:
    """Return the worlds that fail without a defence, and the tests that show the rest."""
    worlds = [f"world {mutant.seed} fails if this is so: “{mutant.what}”" for mutant in promise.mutants]
    tests = [f"`{path}`: {names}" for path, _, names in (test.partition(": ") for test in promise.tests)]
    return "; ".join([*worlds, *tests])


def test_the_page_has_the_table(request: pytest.FixtureRequest) -> None:
    page = PAGE.read_text(encoding="utf-8")
    head, _, rest = page.partition(BEGIN)
    _, _, tail = rest.partition(END)
    sections = "\n".join(f"### {name}\n\n{table(promises)}" for name, promises in PROMISES.items())
    made = f"{head}{BEGIN}\n\n{sections}\n{END}{tail}"
    if request.config.getoption("record"):
        PAGE.write_text(made, encoding="utf-8")
        return

    assert page == made


def test_the_tests_that_promises_name_exist() -> None:
    for promise in (promise for promises in PROMISES.values() for promise in promises):
        assert promise.mutants or promise.tests, promise.fault
        for path, _, names in (test.partition(": ") for test in promise.tests):
            assert {name.strip() for name in names.split(";")} <= sentences(TESTS / path), path


def sentences(module: Path) -> set[str]:
    """Return the names of a module's tests as they read."""
    functions = [
        node.name
        for node in ast.walk(ast.parse(module.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    return {name.removeprefix("test_").replace("_", " ") for name in functions}
