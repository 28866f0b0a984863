"""The arguments that commands share, and what they open."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from snapshots.errors import SnapshotNotFound
from snapshots.snapshot import Snapshot
from snapshots.store import SnapshotStore

Uri = Annotated[str, typer.Argument(metavar="URI", help="One operator's folder: a path, or any fsspec URI.")]
Version = Annotated[int | None, typer.Option("--version", min=1, help="A version; the newest if not given.")]
Parallelism = Annotated[int, typer.Option("--parallelism", min=1, help="The number of subtasks to rescale to.")]
MaxParallelism = Annotated[
    int | None, typer.Option("--max-parallelism", min=1, help="How many key groups there are to be; takes --rewrite.")
]
Hash = Annotated[str | None, typer.Option("--hash", help="xxhash64 or flink; another one than now takes --rewrite.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
StorageOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--storage-option",
        metavar="KEY=VALUE",
        help="An option of the filesystem, may be repeated. A value that is JSON is read as JSON.",
    ),
]


def open_store(uri: str, storage_options: Sequence[str] | None) -> SnapshotStore:
    """Open the store of one operator's folder."""
    return SnapshotStore.at(uri, storage_options=dict(map(_parse_option, storage_options or ())) or None)


def load(store: SnapshotStore, version: int | None) -> Snapshot:
    """Load a version, or the newest.

    Raises
    ------
    SnapshotNotFound
        There is no such version, or none at all.
    """
    if version is not None:
        return store.load(version)
    newest = store.latest()
    if newest is None:
        raise SnapshotNotFound(store.uri)
    return newest


def _parse_option(text: str) -> tuple[str, Any]:
    key, separator, value = text.partition("=")
    if not key or not separator:
        # Not what was passed: it may be a secret.
        raise typer.BadParameter("an option is not KEY=VALUE", param_hint="--storage-option")
    try:
        return key, json.loads(value)
    except ValueError:
        return key, value
