"""Errors of hosting, named after the situation; each says what to do next."""

from __future__ import annotations

from collections.abc import Iterable

from keygroups.errors import KeyGroupsError


class HostUnreachable(KeyGroupsError, ConnectionError):
    """No host can be reached: none could be started, or none answers. The operator runs in the task instead.

    Attributes
    ----------
    reason : str
        What was tried, and how it failed.
    """

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(f"no host can be reached: {reason}; the operator runs in the task for this epoch")


class HostLost(KeyGroupsError, ConnectionError):
    """A host has ended, or has shown no sign of life for too long, while it was fed.

    Attributes
    ----------
    what : str
        What happened to the host, such as "has ended".
    log : str
        The host's log file.
    """

    def __init__(self, what: str, log: str) -> None:
        self.what = what
        self.log = log
        super().__init__(
            f"the operator's host {what}. Look in its log, {log}, for a function that blocks the event loop or uses up "
            "the memory. The epoch is run again from the newest snapshot"
        )


class HostFailed(KeyGroupsError, RuntimeError):
    """A host failed with an error that cannot be passed on as it is.

    Attributes
    ----------
    cause : str
        The error, as text.
    """

    def __init__(self, cause: str) -> None:
        self.cause = cause
        super().__init__(f"the operator's host failed: {cause}; its log has the traceback")


class FeederFenced(KeyGroupsError, RuntimeError):
    """A newer attempt has claimed the host: this one must end, and start no other host.

    Attributes
    ----------
    version, attempt : int
        The fence of this attempt.
    """

    def __init__(self, version: int, attempt: int) -> None:
        self.version = version
        self.attempt = attempt
        super().__init__(
            f"attempt {attempt} at the epoch after version {version} is not the newest one: its result is not needed"
        )


class IncompleteEpoch(KeyGroupsError, RuntimeError):
    """Some subtasks of an epoch have no part that can be committed.

    Attributes
    ----------
    job : str
        The attempt at the epoch.
    missing : list of int
        The indices of these subtasks.
    """

    def __init__(self, job: str, missing: Iterable[int]) -> None:
        self.job = job
        self.missing = list(missing)
        super().__init__(f"subtasks {self.missing} have no part of {job}: run the epoch again")


class MessageTooLarge(KeyGroupsError, ValueError):
    """A message is larger than the other side accepts.

    Attributes
    ----------
    size_bytes, limit_bytes : int
        The size of the message, and the limit.
    """

    def __init__(self, size_bytes: int, limit_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.limit_bytes = limit_bytes
        super().__init__(
            f"a message of {size_bytes} bytes is over the limit of {limit_bytes}: have Spark send smaller batches "
            "(spark.sql.execution.arrow.maxRecordsPerBatch), or keep large values outside of the rows"
        )


class NotOurs(KeyGroupsError, ConnectionError):
    """The other side does not know the run's secret, or speaks another protocol. Nothing that it sent was unpickled.

    Attributes
    ----------
    reason : str
        How the other side was found out.
    """

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(f"the other side is not of this run: {reason}")
