"""How many processes a job has, and whether it can have them."""

from __future__ import annotations

import os
from collections.abc import Mapping

from async_op.job.chain import Plan
from async_op.job.processes import spawn
from async_op.job.processes.child import ChildSpec
from async_op.job.processes.children import Children
from async_op.job.step import Step
from keygroups.arguments import check_integer
from keygroups.errors import ConfigError

PROCESSES_MAX = 256


def processes_of(processes: object, parallelism: int | None) -> int | None:
    """Return how many worker processes a job has; None if its steps run on the event loop of `run`.

    Raises
    ------
    ConfigError
        It is neither None, "auto" nor a number between 1 and the parallelism.
    """
    if processes is None:
        return None
    if processes == "auto":
        found = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        count = min(found, parallelism or found, PROCESSES_MAX)
        return count if count > 1 else None
    count = check_integer("processes", processes, 1, PROCESSES_MAX, reason="or pass 'auto' or None")
    if parallelism is not None and count > parallelism:
        raise ConfigError("processes", processes, f"with parallelism={parallelism}, some of them would have nothing")
    return count


def check_spread(steps: Mapping[str, Step], uri: str) -> None:
    """Check that the steps of a job can run in other processes.

    Raises
    ------
    ConfigError
        The snapshots are in the memory of this process.
    NotSendable
        A step cannot be pickled.
    """
    if uri.startswith("memory:"):
        raise ConfigError("snapshots", uri, "other processes cannot read the memory of this one: pass a folder")
    spawn.check_sendable(steps)


def children_of(plan: Plan, steps: Mapping[str, Step], count: int) -> Children:
    """Return the children of a run, not started yet."""
    spec = ChildSpec(
        number=0,
        count=count,
        steps=dict(steps),
        hash=plan.hash,
        max_parallelism=plan.max_parallelism,
        lineage=plan.lineage,
        are_decoded=plan.are_decoded,
    )
    return Children(spec, spawn.launch)
