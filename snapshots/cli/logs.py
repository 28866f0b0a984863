"""``keygroups logs``: shows what functions print and log on Spark, from the logs of hosts on this machine."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

from snapshots.cli.options import AsJson, StorageOptions, Uri, open_store
from snapshots.cli.output import NotFound
from snapshots.host_logs import logs_of, logs_pattern, tails_of

Lines = Annotated[
    int, typer.Option("--lines", metavar="N", min=1, help="How many lines of each log to show, from its end.")
]


def logs(uri: Uri, lines: Lines = 100, as_json: AsJson = False, storage_option: StorageOptions = None) -> None:
    """Show what the functions of a pipeline print and log: the logs of its hosts on this machine, newest last."""
    folder = open_store(uri, storage_option).uri
    found = {path: text.splitlines()[-lines:] for path, text in tails_of(logs_of(folder)).items()}
    if not found:
        reason = "nothing was printed, its operators run in Spark's tasks, or its hosts are on other machines"
        raise NotFound(f"this machine has no {logs_pattern(folder)}: {reason}")
    if as_json:
        sys.stdout.write(f"{json.dumps({'logs': [{'path': path, 'lines': last} for path, last in found.items()]})}\n")
        return
    for path, last in found.items():
        sys.stdout.write("\n".join([f"==> {path} <==", *last, ""]))
