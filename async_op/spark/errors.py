"""Errors of the Spark entry points."""

from __future__ import annotations

import sys

from async_op.errors import shorten
from keygroups.errors import KeyGroupsError, in_message


class OutputMismatch(KeyGroupsError, ValueError):
    """An output of the function does not fit `output_schema`."""

    output: str
    """The output, shortened."""
    column: str | None
    """The column that does not fit; None if the whole output does not."""
    reason: str
    """What is wrong."""

    def __init__(self, output: object, column: str | None, reason: str) -> None:
        self.output = shorten(output)
        self.column = column
        self.reason = reason
        place = "" if column is None else f" in column {column!r}"
        super().__init__(
            f"output {in_message(output, self.output)} does not fit output_schema{place}: {reason}; "
            "return dicts or tuples that fit the columns of output_schema and their types"
        )


class CalledInSink(KeyGroupsError, RuntimeError):
    """A sink called a method that waits for the end of the sink."""

    what: str
    """What was called, such as "stop"."""
    snapshots: str
    """The operator's folder."""

    _template = (
        "{what} was called in the sink of {snapshots}, which it has to wait for: let the sink return first, and "
        "call it on a thread that the sink does not wait for; to end the query from the sink, raise an error there"
    )


class UnrelatedHistories(KeyGroupsError, ValueError):
    """A checkpoint and the snapshots do not belong together: rows would count twice, or not at all."""

    snapshots: str
    """The operator's folder."""
    checkpoint: str
    """The location of Spark's checkpoint."""
    reason: str
    """What does not fit."""
    ways: list[str]
    """How to start anyway."""

    def _message(self) -> str:
        return f"{self.reason}; pass the checkpoint and the snapshots of one query, or {', or '.join(self.ways)}"


class UnrelatedPipelines(KeyGroupsError, ValueError):
    """In a chain, the state of a pipeline does not belong to the snapshots of the one before it."""

    snapshots: str
    """The folder of the pipeline."""
    upstream: str
    """The folder of the pipeline before it."""
    reason: str
    """What does not fit."""
    ways: list[str]
    """How to start anyway, from the next epoch of the pipeline before."""

    def _message(self) -> str:
        return (
            f"{self.reason}; pass the snapshots of one chain, or continue with the next epoch of {self.upstream}: "
            f"{', or '.join(self.ways)}"
        )


class UnfinishedRun(KeyGroupsError, ValueError):
    """A bounded run has begun and not finished, so a part of its rows is in the state."""

    snapshots: str
    """The operator's folder."""
    run_id: str
    """The run."""
    done: int
    """How many of its chunks are in the state."""
    chunks: int
    """How many chunks it has."""

    _template = (
        "{snapshots} has {done} of {chunks} chunks of run {run_id!r}: finish it with run(..., run_id={run_id!r}); if "
        "its stored input is lost, abandon it with start(..., adopt='state')"
    )


class EpochFailed(KeyGroupsError, RuntimeError):
    """An epoch has failed, so the query has stopped.

    Over Spark Connect the query raises it; its notes have the traceback of the error beside the server. Otherwise only
    Spark gets it, because Spark would print the real error several times: the pipeline's query raises that.
    """

    snapshots: str
    """The operator's folder."""
    reason: str
    """The class and the message of the error."""

    _template = (
        "an epoch of {snapshots} has failed: {reason}; awaitTermination, stop and exception of the pipeline's query "
        "have the traceback, and the next start resumes from the newest snapshot"
    )


class WorkerSilent(KeyGroupsError, TimeoutError):
    """The worker beside a Spark Connect server is silent, although the client waits for a drain or the query's end."""

    snapshots: str
    """The operator's folder."""
    seconds: float
    """How long it has been silent."""

    _template = (
        "the worker of {snapshots} has been silent for {seconds:g} s, so it may have been killed: nothing is lost; "
        "stop the query and start the pipeline again, it finishes what is in flight"
    )


class WorkerLate(KeyGroupsError, TimeoutError):
    """Spark Connect's server gave up on a worker that took more than ten seconds to start."""

    snapshots: str
    """The operator's folder."""

    _template = (
        "no worker for {snapshots} has started within the ten seconds that Spark gives it, so the query has not "
        "started, and nothing was changed; the server's machine may be busy: start the pipeline again, or give it more "
        "processors"
    )


class UnpicklableFunction(KeyGroupsError, TypeError):
    """A function holds what cannot be sent to Spark's workers, such as a connection or a lock."""

    function: str
    """The name of the function."""
    attributes: list[str]
    """Its attributes, and the variables that it uses, that cannot be sent."""
    reason: str
    """The error message of the pickler."""

    def _message(self) -> str:
        held = f" (its {', '.join(self.attributes)})" if self.attributes else ""
        return (
            f"{self.function}{held} cannot be sent to the workers: {self.reason}; keep only addresses and settings in "
            "it; create clients, locks and the like in `open()` of an AsyncFunction, on the executor"
        )


class UnsuitableWorkerPython(KeyGroupsError, RuntimeError):
    """Spark's workers run a Python that cannot run the function: the executable was chosen with `PYSPARK_PYTHON`."""

    python: str
    """The executable of the workers."""
    reason: str
    """Why it cannot run the function."""

    def _message(self) -> str:
        return (
            f"Spark's workers run {self.python}, which {self.reason}; set PYSPARK_PYTHON={sys.executable} in the "
            "environment before the session is created, or unset it, and on a cluster install the same packages there"
        )


class ModuleNotOnWorkers(KeyGroupsError, ImportError):
    """The function needs a module that only the driver can import, such as one beside the script."""

    module: str
    """The name of the module."""
    place: str
    """The file or the folder of the module on the driver."""

    _template = (
        "the function needs the module {module!r}, which Spark's workers cannot import; send it to them with "
        "spark.addArtifacts({place!r}, pyfile=True), or install it where they run"
    )
