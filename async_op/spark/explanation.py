"""What a pipeline would do, and what looks wrong with it, as objects to look at."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from keygroups.representation import fields_repr, html_table, representation


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that looks wrong with a pipeline.

    Attributes
    ----------
    operator_id : str
        The operator that it is about.
    problem : str
        What it is, and what follows from it.
    advice : str
        The next step.
    """

    operator_id: str
    problem: str
    advice: str

    __repr__ = fields_repr

    def __str__(self) -> str:
        return f"{self.operator_id}: {self.problem}; {self.advice}"


@dataclass(frozen=True, slots=True, repr=False)
class Explanation:
    """What a pipeline would do with its next epoch, and what looks wrong. Print it, or show it in a notebook.

    It is a picture of one moment: the arguments, the newest snapshots and the settings of the active Spark session.

    Attributes
    ----------
    operators : mapping of str to mapping of str to str
        Facts by their names, for each operator of the chain by its id.
    findings : tuple of Finding
        What looks wrong; empty if nothing does.

    Examples
    --------
    >>> print(pipeline.explain())  # doctest: +SKIP
    enrich
      function          Enrich, by key user
      key groups        128 by xxhash64; 0: 0-63, 1: 64-127
      …
    nothing looks wrong
    """

    operators: Mapping[str, Mapping[str, str]]
    findings: tuple[Finding, ...]

    def __repr__(self) -> str:
        return representation(self, {"operators": list(self.operators), "findings": len(self.findings)})

    def __str__(self) -> str:
        lines = []
        for operator_id, facts in self.operators.items():
            width = max(map(len, facts), default=0)
            lines += [operator_id, *(f"  {name:<{width}}  {value}" for name, value in facts.items())]
        wrong = [f"  - {one}" for one in self.findings]
        return "\n".join([*lines, *(["looks wrong:", *wrong] if wrong else ["nothing looks wrong"])])

    def _repr_html_(self) -> str:
        wrong = [(one.operator_id, "looks wrong", one.problem, one.advice) for one in self.findings]
        facts = [(name, *fact, "") for name, found in self.operators.items() for fact in found.items()]
        return html_table("pipeline", ("operator", "what", "how", "next step"), wrong + facts)
