"""The arguments that several commands share."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from snapshots.store import SnapshotStore

Uri = Annotated[str, typer.Argument(metavar="URI", help="The folder of one operator or job: a path or any fsspec URI.")]
Version = Annotated[
    int | None, typer.Option("--version", metavar="N", min=1, help="The version; by default the newest.")
]
Parallelism = Annotated[
    int, typer.Option("--parallelism", metavar="N", min=1, help="The number of subtasks to rescale to.")
]
MaxParallelism = Annotated[
    int | None,
    typer.Option(
        "--max-parallelism", metavar="N", min=1, help="The new number of key groups; a change requires --rewrite."
    ),
]
Hash = Annotated[
    str | None, typer.Option("--hash", metavar="NAME", help="xxhash64 or flink; a change requires --rewrite.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
StorageOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--storage-option",
        metavar="KEY=VALUE",
        help="An option of the filesystem; may be repeated. JSON values are parsed as JSON.",
    ),
]

_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?)([smhd]?)")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def open_store(uri: str, storage_options: Sequence[str] | None) -> SnapshotStore:
    """Open the store in the folder of one operator or job."""
    return SnapshotStore.at(uri, storage_options=parsed(storage_options))


def parsed(storage_options: Sequence[str] | None) -> dict[str, Any] | None:
    """Return options as the filesystem takes them."""
    return dict(map(_parse_option, storage_options or ())) or None


def seconds_of(text: str, option: str) -> float:
    """Parse a duration, which has a unit, such as ``1.5s``, ``90m``, ``36h`` or ``7d``."""
    match = _DURATION.fullmatch(text)
    if match is None:
        raise typer.BadParameter(f"{text!r} is not a duration such as 1.5s, 90m, 36h or 7d", param_hint=option)
    if not match[2]:
        units = " or ".join(match[1] + unit for unit in _SECONDS)
        raise typer.BadParameter(f"{text!r} has no unit: pass {units}", param_hint=option)
    return float(match[1]) * _SECONDS[match[2]]


def _parse_option(text: str) -> tuple[str, Any]:
    key, separator, value = text.partition("=")
    if not key or not separator:
        # The message does not show the option, which may be a secret.
        raise typer.BadParameter("an option is not KEY=VALUE", param_hint="--storage-option")
    try:
        return key, json.loads(value)
    except ValueError:
        return key, value
