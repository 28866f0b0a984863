"""Each rule of jobs is broken on purpose, and something notices it.

The table of the documentation is made of the mutants: `pytest tests/async_op/job --record` writes it.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
from operator import attrgetter
from pathlib import Path

import pytest

from tests.async_op.job.rules import MUTANTS, RULES, Case, Mutant
from tests.async_op.job.simulation.run import simulate

PAGE = Path(__file__).parents[3] / "docs" / "explanation" / "rules.md"
_OTHER_SEEDS = 400
BEGIN, END = "<!-- made by tests/async_op/job/test_mutants.py -->", "<!-- end -->"


def noticed(check: Case | int, patch: pytest.MonkeyPatch) -> bool:
    """Return whether a test or a seed fails."""
    try:
        simulate(check) if isinstance(check, int) else run(check, patch)
    except (Exception, pytest.fail.Exception):  # noqa: BLE001 - whatever it is, a test would have failed
        return True
    return False


def run(case: Case, patch: pytest.MonkeyPatch) -> None:
    """Call a test as pytest would."""
    module = importlib.import_module(case.path.removesuffix(".py").replace("/", "."))
    owner, _, name = case.test.rpartition(".")
    test = getattr(attrgetter(owner)(module)(), name) if owner else getattr(module, name)
    wanted = inspect.signature(test).parameters
    outcome = test(*case.arguments, **({"monkeypatch": patch} if "monkeypatch" in wanted else {}))
    if inspect.iscoroutine(outcome):
        asyncio.run(outcome)


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_broken_rule_is_noticed(mutant: Mutant) -> None:
    assert is_noticed(mutant, mutant.caught_by), f"{mutant.name} survives {mutant.caught_by}{other_seed(mutant)}"


def other_seed(mutant: Mutant) -> str:
    """Return what to write in place of a seed that no longer notices a mutant, as it happens when the code changes."""
    if isinstance(mutant.caught_by, Case):
        return ""
    found = (seed for seed in range(_OTHER_SEEDS) if is_noticed(mutant, seed))
    return f"; the first seed that notices it is {next(found, None)}"


def is_noticed(mutant: Mutant, check: Case | int) -> bool:
    """Return whether a test or a seed fails with a rule broken."""
    with pytest.MonkeyPatch.context() as patch:
        mutant.break_it(patch)
        return noticed(check, patch)


def table() -> str:
    """Return the table that the page must have."""
    lines = ["| rule | broken on purpose | noticed by |", "| --- | --- | --- |"]
    for rule, found in RULES.items():
        lines += [f"| {rule} | {mutant.what} | {mutant.test} |" for mutant in found]
    return "\n".join(lines) + "\n"


def test_the_page_has_the_table(request: pytest.FixtureRequest) -> None:
    page = PAGE.read_text(encoding="utf-8")
    head, _, rest = page.partition(BEGIN)
    _, _, tail = rest.partition(END)
    made = f"{head}{BEGIN}\n\n{table()}\n{END}{tail}"
    if request.config.getoption("record"):
        PAGE.write_text(made, encoding="utf-8")
        return

    assert page == made
