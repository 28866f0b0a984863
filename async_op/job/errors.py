"""Errors of jobs, named after the situation; each says what to do next."""

from __future__ import annotations

from keygroups.errors import KeyGroupsError
from keygroups.safe_text import described


class JobNotRunning(KeyGroupsError, RuntimeError):
    """A running job was needed, and this one is not running, is about to end, or has ended in the meantime."""

    job_id: str
    """The id of the job."""

    _template = (
        "job {job_id!r} is not running, or was told to stop: start it with run() in a task of its own, then ask it"
    )


class JobAlreadyRunning(KeyGroupsError, RuntimeError):
    """`run` was called while the job runs."""

    job_id: str
    """The id of the job."""

    _template = "job {job_id!r} is already running: stop it first, or create another Job with another job_id"


class JobInsideEventLoop(KeyGroupsError, RuntimeError):
    """`run_sync` was called where an event loop runs already, in a coroutine or in a notebook's cell."""

    job_id: str
    """The id of the job."""

    _template = (
        "job {job_id!r}: an event loop runs in this thread, as in a notebook, and run_sync has its own: use `await "
        "job.run()` in its place"
    )


class ConnectorCancelled(KeyGroupsError, RuntimeError):
    """A source, a sink or a client raised a `CancelledError` although the job, or the stream, was not cancelled."""

    what: str
    """What was being done, such as "reading partition 0"."""

    _template = (
        "{what} ended with a CancelledError, but your program did not cancel it: find the client that cancels its own "
        "tasks, for example when it is closed"
    )


class ConnectorBroken(KeyGroupsError, RuntimeError):
    """A task failed that `open` of a source or a sink had started, in a task group that it had entered."""

    connector: str
    """The type of the source or the sink, which is closed."""
    cause: str
    """The error, as text; the error itself is `__cause__`."""

    def __init__(self, connector: str, cause: BaseException) -> None:
        self.connector = connector
        self.cause = described(cause)
        super().__init__(
            f"what {connector} had opened ended with {self.cause}, so it was closed: handle the error where it is "
            "raised, or let the job restart; it continues from its newest snapshot"
        )


class ChildLost(KeyGroupsError, RuntimeError):
    """A child process of a job has ended by itself, for instance by a segmentation fault or for want of memory."""

    child: int
    """Which child it was, counted from 1."""
    pid: int
    """The id of its process."""
    status: str
    """How it has ended: "by SIGKILL", or "with status 3"."""
    steps: str
    """The names of the steps that ran in it."""
    subtasks: str
    """Its subtasks of each step."""

    _template = (
        "child {child} of the job (process {pid}) has ended {status}; it ran subtasks {subtasks} of {steps}: look at "
        "what it has printed, and whether the machine has enough memory; started again, the job continues from its "
        "newest snapshot"
    )


class ChildFailed(KeyGroupsError, RuntimeError):
    """An error in a child process that cannot be sent to the parent, because it cannot be pickled or unpickled."""

    child: int
    """Which child it was, counted from 1."""
    cause: str
    """The error, as text."""

    _template = "child {child} of the job has failed: {cause}; that error cannot be pickled, so this error replaces it"


class NotSendable(KeyGroupsError, TypeError):
    """A job with processes has a step that cannot be sent to them."""

    step: str
    """The name of the step."""
    part: str
    """What of it cannot be pickled, such as "function"."""
    cause: str
    """Why, as text."""

    _template = (
        "{part} of step {step} cannot be sent to a child process: {cause}; define it at the top of a module that can "
        "be imported, make connections in open(), or run the job without `processes`"
    )


class ProgramNotImported(KeyGroupsError, RuntimeError):
    """A child process could not import the program that has started the job, or the functions of its steps."""

    is_permanent = True

    cause: str
    """Why, as text."""

    _template = (
        "a child process imports the program that has started the job, and the functions of its steps, and that has "
        'failed: put what the program does when it starts under `if __name__ == "__main__":`, and define functions in '
        "files, not in a notebook's cell; the import ended with {cause}"
    )


class StreamAlreadyRead(KeyGroupsError, RuntimeError):
    """A job was started again over an iterator that was read beyond the newest snapshot, or closed before its end."""

    is_permanent = True

    position: int
    """How many elements are part of the snapshot."""
    taken: int
    """How many elements were taken from the iterator."""

    _template = (
        "an earlier run has read {taken} elements of the source, which is an iterator, and ended before its end; the "
        "snapshot has {position} of them: "
        "pass what can be iterated again, such as a list or an object with __iter__, or make a new iterator that "
        "starts at the beginning"
    )


class DeadLettersUnclaimed(KeyGroupsError, RuntimeError):
    """A committed epoch has undelivered dead letters, and the job has no sink for them any more."""

    is_permanent = True

    epoch: int
    """The number of the epoch."""
    count: int
    """How many dead letters it has."""

    _template = (
        "epoch {epoch} has {count} dead letters that were not delivered: pass `dead_letters=` to the job once more"
    )
