"""Maps errors to exit codes, and shows them."""

from __future__ import annotations

import sys

from keygroups.errors import ConfigError, KeyGroupsError, MissingCodec
from snapshots.errors import CommitConflict, SnapshotExists, SnapshotNotFound, WriterFenced

CHECK_FAILED = 1
USAGE = 2
NOT_FOUND = 3
CONFLICT = 4


class NotFound(KeyGroupsError, LookupError):
    """What a command was asked for does not exist; the text says where it was looked for."""


def exit_code_of(error: Exception) -> int:
    """Return the exit code of an error that is shown without a traceback."""
    match error:
        case ConfigError():
            return USAGE
        case SnapshotNotFound() | NotFound():
            return NOT_FOUND
        case CommitConflict() | WriterFenced() | SnapshotExists():
            return CONFLICT
        case _:
            return CHECK_FAILED


def show_error(error: Exception) -> None:
    """Write the error's message, which says what to do next, to stderr."""
    sys.stderr.write(f"error: {error}\n")
    if isinstance(error, MissingCodec):
        sys.stderr.write("on the command line: keygroups --import MODULE, with the module that registers it\n")
