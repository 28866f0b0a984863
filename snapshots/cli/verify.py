"""``keygroups verify``: checks every file of a snapshot against its manifest."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import typer

from snapshots.cli.live import progress_bar
from snapshots.cli.options import AsJson, StorageOptions, Uri, Version, open_store
from snapshots.cli.output import CHECK_FAILED, Table, output_for
from snapshots.upkeep.verify import VerifyReport


def verify(uri: Uri, version: Version = None, as_json: AsJson = False, storage_option: StorageOptions = None) -> None:
    """Read every file of a snapshot and compare it with the manifest."""
    store = open_store(uri, storage_option)
    with progress_bar("verifying") as progress:
        report = store.verify(version, progress=progress)
    output_for(as_json=as_json).show(Verification(report))
    if not report.ok:
        raise typer.Exit(CHECK_FAILED)


@dataclass(frozen=True, slots=True)
class Verification:
    """The report of ``keygroups verify``."""

    report: VerifyReport

    def to_json(self) -> dict[str, Any]:
        """Return the report as data for JSON, in a stable form."""
        report = self.report
        return {
            "version": report.version,
            "ok": report.ok,
            "files": report.files,
            "bytes": report.bytes,
            "problems": [
                {
                    "path": problem.path,
                    "first": problem.key_groups.start if problem.key_groups else None,
                    "last": problem.key_groups.end if problem.key_groups else None,
                    "what": problem.what,
                }
                for problem in report.problems
            ],
        }

    def tables(self) -> Iterable[Table]:
        """Return the report as tables for people."""
        report = self.report
        verdict = "every file is whole" if report.ok else f"{len(report.problems)} damaged or missing"
        yield Table(f"snapshot {report.version}: {verdict}", (), (("files", report.files), ("bytes", report.bytes)))
        if report.problems:
            yield Table(
                "damage",
                ("file", "first", "last", "what"),
                tuple(
                    (
                        problem.path,
                        problem.key_groups.start if problem.key_groups else None,
                        problem.key_groups.end if problem.key_groups else None,
                        problem.what,
                    )
                    for problem in report.problems
                ),
            )
