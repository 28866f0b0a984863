"""What `keygroups run` does: finds a job in a module, and runs it, or says what it would do."""

from __future__ import annotations

import asyncio
import importlib
import logging
import sys

from async_op.epochs.restarts import RestartPolicy
from async_op.explanation import Explanation
from async_op.job.job import Job
from keygroups.errors import ConfigError
from keygroups.safe_text import described

_FORM = 'name a module and its job, such as "orders:job"'


def run_job(target: str, *, serve: str | None, max_restarts: int | None, processes: str | None) -> None:
    """Run a job to its end, as `Job.run_sync` does.

    Parameters
    ----------
    target : str
        The module and the name of the job in it, such as "orders:job". The current folder is searched, too.
    serve : str or None
        As for `Job.run`.
    max_restarts : int or None
        The most restarts in a row, in place of the job's own policy; 0 for none.
    processes : str or None
        A number of worker processes or "auto", in place of the job's own.

    Raises
    ------
    ConfigError
        There is no such module, or no job of this name in it.
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    job = _job_with(target, processes)
    if max_restarts is not None:
        job.restart = RestartPolicy(max_restarts) if max_restarts else None
    job.run_sync(serve=serve)


def explain_job(target: str, *, processes: str | None) -> Explanation:
    """Return what a job would do, and what looks wrong, as `Job.explain` does.

    Parameters
    ----------
    target, processes
        As for `run_job`.

    Raises
    ------
    ConfigError
        There is no such module, or no job of this name in it.
    """
    return asyncio.run(_job_with(target, processes).explain())


def _job_with(target: str, processes: str | None) -> Job:
    job = job_in(target)
    if processes is not None:
        job.spread("auto" if processes == "auto" else _number(processes))
    return job


def _number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ConfigError("processes", text, "pass a number or auto") from None


def job_in(target: str) -> Job:
    """Return the job that a target names; raises `ConfigError` if there is none."""
    module_name, colon, name = target.partition(":")
    if not (module_name and colon and name):
        raise ConfigError("job", target, _FORM)
    if "" not in sys.path:
        sys.path.insert(0, "")  # as `python -m` does
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise  # what the module imports is missing: its traceback says where
        reason = f"{described(error)}; run it in the module's folder, or install the module"
        raise ConfigError("job", target, reason) from error
    found = getattr(module, name, None)
    if not isinstance(found, Job):
        jobs = sorted(other for other, value in vars(module).items() if isinstance(value, Job))
        has = f"it has {', '.join(jobs)}" if jobs else "it has none: make one at its top level"
        raise ConfigError("job", target, f"{name!r} in {module_name} is no Job; {has}")
    return found
