"""``keygroups claim``: takes over an operator, and can give up missing state."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import typer

from keygroups.errors import ConfigError
from snapshots.cli.options import AsJson, StorageOptions, Uri, open_store
from snapshots.cli.output import Table, output_for
from snapshots.errors import SnapshotNotFound

AcceptLoss = Annotated[
    bool,
    typer.Option("--accept-loss", help="Give up the newest state, whose manifest is missing, and continue without it."),
]
FirstParallelism = Annotated[
    int | None,
    typer.Option("--parallelism", metavar="N", min=1, help="The number of subtasks, if there is no snapshot yet."),
]
FirstMaxParallelism = Annotated[
    int | None,
    typer.Option(
        "--max-parallelism", metavar="N", min=1, help="The number of key groups, if there is no snapshot yet."
    ),
]

_NOTHING = "; check the URI (it names one operator's folder), or pass --parallelism to begin an operator there"


def claim(
    uri: Uri,
    accept_loss: AcceptLoss = False,
    parallelism: FirstParallelism = None,
    max_parallelism: FirstMaxParallelism = None,
    as_json: AsJson = False,
    storage_option: StorageOptions = None,
) -> None:
    """Commit the newest snapshot again, which fences every earlier writer."""
    store = open_store(uri, storage_option)
    try:
        claimed = store.claim(parallelism=parallelism, max_parallelism=max_parallelism, accept_loss=accept_loss)
    except ConfigError as error:
        if error.name != "parallelism" or parallelism is not None:
            raise
        raise SnapshotNotFound(store.uri, advice=_NOTHING) from None  # the URI may be mistyped
    manifest = claimed.snapshot.manifest
    report = ClaimReport(
        version=manifest.version, parent_version=manifest.parent_version, operator_id=manifest.operator_id
    )
    output_for(as_json=as_json).show(report)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimReport:
    """The report of ``keygroups claim``."""

    version: int
    parent_version: int | None
    operator_id: str

    def to_json(self) -> dict[str, Any]:
        """Return the report as data for JSON, in a stable form."""
        return asdict(self)

    def tables(self) -> Iterable[Table]:
        """Return the report as tables for people."""
        rows = (("as version", self.version), ("content of version", self.parent_version))
        yield Table(f"claimed {self.operator_id}", (), rows)
