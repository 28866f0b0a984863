"""Errors of hosting, named after the situation; each says what to do next."""

from __future__ import annotations

import signal

from keygroups.errors import KeyGroupsError


class HostUnreachable(KeyGroupsError, ConnectionError):
    """No host can be reached: none could be started, or none answers. The operator runs in the task instead."""

    reason: str
    """What was tried, and how it failed."""

    _template = "no host can be reached: {reason}; the operator runs in the task for this epoch"


class HostLost(KeyGroupsError, ConnectionError):
    """A host has ended, or has shown no sign of life for too long, while it was fed."""

    what: str
    """What happened to the host, such as "has ended"."""
    log: str
    """The host's log file."""

    _template = (
        "the operator's host {what}. Look in its log, {log}, for a function that blocks the event loop or uses up the "
        "memory"
    )


class HostSilent(HostLost):
    """A host has shown no sign of life for too long: it is stopped, or a call blocks its event loop."""


def described_status(status: int) -> str:
    """Return how a process has ended, for a message.

    Examples
    --------
    >>> described_status(-9), described_status(3)
    ('by SIGKILL', 'with status 3')
    """
    if status >= 0:
        return f"with status {status}"
    return f"by {signal.Signals(-status).name}"


class HostFailed(KeyGroupsError, RuntimeError):
    """A host failed with an error that cannot be passed on as it is."""

    cause: str
    """The error, as text."""

    _template = "the operator's host failed: {cause}; its log has the traceback"


class FeederFenced(KeyGroupsError, RuntimeError):
    """A newer attempt has claimed the host: this one must end, and start no other host."""

    version: int
    """The newest version when this attempt began."""
    attempt: int
    """The task attempt, the second part of the fence."""

    _template = "attempt {attempt} at the epoch after version {version} is not the newest one: its result is not needed"


class IncompleteEpoch(KeyGroupsError, RuntimeError):
    """Some subtasks of an epoch have no part that can be committed."""

    job: str
    """The attempt at the epoch."""
    missing: list[int]
    """The indices of these subtasks."""

    _template = "subtasks {missing} have no part of {job}: run the epoch again"


class MessageTooLarge(KeyGroupsError, ValueError):
    """A message is larger than the other side accepts."""

    size_bytes: int
    """The size of the message."""
    limit_bytes: int
    """The largest size that is accepted."""

    _template = (
        "a message of {size_bytes} bytes is over the limit of {limit_bytes}: keep large values in files, and only the "
        "names of these files in the rows"
    )


class NotOurs(KeyGroupsError, ConnectionError):
    """The other side does not know the run's secret, or speaks another protocol. Nothing that it sent was unpickled."""

    reason: str
    """How the other side was found out."""

    _template = "the other side does not belong to this run: {reason}"
