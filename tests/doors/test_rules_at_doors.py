"""A rule holds at every entry point, or a sentence says why it cannot; `tests/spark` has a module of the same name.

`pytest tests/doors/test_rules_at_doors.py --record` writes the tables of docs/explanation/entry-points.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from tests.doors.entry_points import LOCAL, LOCAL_RESTARTS, check, check_restarts
from tests.doors.restart_rules import RESTART_RULES, RestartRule
from tests.doors.rules import ENTRY_POINTS, HOST, PIPELINE, RULES, Rule
from tests.quick import few_are_quick

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "entry-points.md"
BEGIN, END = "<!-- made by tests/doors/test_rules_at_doors.py -->", "<!-- end -->"


def cells(rules: Mapping[str, Rule | RestartRule], entry_points: Iterable[str]) -> list[tuple[str, str]]:
    """Return the entry points and the rules that they have; a host has what its pipeline has."""
    return [
        (entry_point, sentence)
        for entry_point in entry_points
        for sentence, rule in rules.items()
        if not {entry_point, PIPELINE if entry_point == HOST else entry_point} & set(rule.lacks)
    ]


@pytest.mark.parametrize(("entry_point", "sentence"), few_are_quick(cells(RULES, LOCAL)))
def test_a_rule_holds(entry_point: str, sentence: str, tmp_path: Path) -> None:
    check(RULES[sentence], LOCAL[entry_point](RULES[sentence], tmp_path))


@pytest.mark.parametrize(("entry_point", "sentence"), few_are_quick(cells(RESTART_RULES, LOCAL_RESTARTS)))
def test_a_rule_of_restarts_holds(entry_point: str, sentence: str, tmp_path: Path) -> None:
    check_restarts(RESTART_RULES[sentence], tmp_path, LOCAL_RESTARTS[entry_point])


def table(title: str, rules: Mapping[str, Rule | RestartRule], entry_points: Sequence[str]) -> Iterator[str]:
    yield from (f"## {title}", "")
    yield f"| rule | {' | '.join(entry_points)} | why not |"
    yield "| --- " * (len(entry_points) + 2) + "|"
    for sentence, rule in rules.items():
        marks = ["no" if entry_point in rule.lacks else "yes" for entry_point in entry_points]
        reasons: dict[str, list[str]] = {}
        for entry_point in entry_points:
            if entry_point in rule.lacks:
                reasons.setdefault(rule.lacks[entry_point], []).append(entry_point)
        why = ". ".join(f"{', '.join(lacking)}: {reason}" for reason, lacking in reasons.items())
        yield f"| {sentence} | {' | '.join(marks)} | {why} |"
    yield ""


def test_the_page_has_the_tables(request: pytest.FixtureRequest) -> None:
    page = PAGE.read_text(encoding="utf-8")
    head, _, rest = page.partition(BEGIN)
    _, _, tail = rest.partition(END)
    tables = [
        *table("In one run", RULES, ENTRY_POINTS),
        *table("From run to run, with snapshots", RESTART_RULES, (*LOCAL_RESTARTS, PIPELINE)),
    ]
    made = "\n".join([f"{head}{BEGIN}", "", *tables, f"{END}{tail}"])
    if request.config.getoption("record"):
        PAGE.write_text(made, encoding="utf-8")
        return

    assert page == made
