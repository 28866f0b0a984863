"""``keygroups run``: runs a job from the command line."""

from __future__ import annotations

import importlib
from typing import Annotated

import typer

Target = Annotated[
    str, typer.Argument(metavar="MODULE:JOB", help="A module, and the name of the Job at its top level.")
]
Serve = Annotated[
    str | None,
    typer.Option("--serve", metavar="HOST:PORT", help="Answer probes, metrics and a live page there."),
]
Restart = Annotated[
    int | None,
    typer.Option("--restart", metavar="N", min=0, help="Restart after a failure, N times in a row; 0 for never."),
]
Processes = Annotated[
    str | None,
    typer.Option("--processes", metavar="N", help="Run the steps in N worker processes; auto for one per processor."),
]


def run(target: Target, serve: Serve = None, restart: Restart = None, processes: Processes = None) -> None:
    """Run a job to its end; SIGTERM or Ctrl-C stops it with a snapshot of what is in flight."""
    # By its name: this package is unaware of jobs, which are made of it.
    command = importlib.import_module("async_op.job.command")
    command.run_job(target, serve=serve, max_restarts=restart, processes=processes)
