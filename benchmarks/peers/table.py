"""The measurements as Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks.peers.cases import Case
from benchmarks.peers.measuring import Result


def as_markdown(surroundings: Mapping[str, Any], tables: Mapping[Case, list[Result]]) -> str:
    """Return a table for each case, the fastest system first, and what each system does not do."""
    head = (
        "{processors} processors, a load of {load_before} before and of {load_after} after, medians of {repeats} runs"
    ).format(**surroundings)
    return "\n".join([head, *(line for case, results in tables.items() for line in table(case, results))])


def table(case: Case, results: list[Result]) -> Iterator[str]:
    """Yield the lines of one case."""
    yield f"\n{case.title}\n"
    yield "| | rows/s | seconds | of runs | CPU seconds | peak MB | versions |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    for result in sorted((one for one in results if one.runs), key=lambda one: one.seconds):
        yield row(result.as_json())
    yield ""
    for result in results:
        if result.absent is not None:
            yield f"- {result.peer.title}: {'failed' if result.failed else 'skipped'}: {result.absent}"
        elif result.peer.lacks:
            yield f"- {result.peer.title}: {result.peer.lacks}"


def row(measured: Mapping[str, Any]) -> str:
    """Return the line of one system."""
    runs = measured["seconds_of_runs"]
    versions = ", ".join(f"{name} {version}" for name, version in measured["versions"].items())
    return (
        f"| {measured['title']} | {measured['rows_per_second']:,} | {measured['seconds']:.2f} "
        f"| {min(runs):.2f} to {max(runs):.2f} | {measured['cpu_seconds']:.1f} | {measured['peak_mb']:,} | {versions} |"
    )
