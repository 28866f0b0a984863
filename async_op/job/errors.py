"""Errors of jobs, named after the situation; each says what to do next."""

from __future__ import annotations

from keygroups.errors import KeyGroupsError


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

    _template = "job {job_id!r} runs already: stop it first, or make another Job with another job_id"


class JobInsideEventLoop(KeyGroupsError, RuntimeError):
    """`run_sync` was called where an event loop runs already, in a coroutine or in a notebook's cell."""

    job_id: str
    """The id of the job."""

    _template = (
        "job {job_id!r}: an event loop runs in this thread, as in a notebook, and run_sync has its own: use `await "
        "job.run()` in its place"
    )


class ConnectorCancelled(KeyGroupsError, RuntimeError):
    """A source, a sink or a client that it uses raised a `CancelledError` although the job was not cancelled."""

    what: str
    """What was being done, such as "reading partition 0"."""

    _template = (
        "{what} ended with a CancelledError, but the job was not cancelled; look for a client that cancels its own "
        "tasks, for instance because it was closed"
    )


class StreamAlreadyRead(KeyGroupsError, RuntimeError):
    """A job was started again over an iterator that was read beyond the newest snapshot."""

    is_permanent = True

    position: int
    """How many elements are part of the snapshot."""
    taken: int
    """How many elements were taken from the iterator."""

    _template = (
        "the source is an iterator from which {taken} elements were taken, and the snapshot has {position} of them: "
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
