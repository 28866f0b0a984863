"""Turns the errors of object store clients into `OSError`s, the only ones that callers need to know.

Each client raises something else for the same answer of its service. For a refusal s3fs raises a PermissionError (but
an OSError for status 401), gcsfs an OSError without a number, and adlfs an error of Azure's own, which is no OSError.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, BinaryIO

from keygroups.context_managers import contextmanager
from keygroups.errors import ConfigError, KeyGroupsError
from keygroups.safe_text import printable
from snapshots.filesystem.errors import StorageUnavailable
from snapshots.filesystem.folder import redacted

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

_MEANINGS: dict[int | None, tuple[type[OSError], int]] = {
    HTTPStatus.UNAUTHORIZED: (PermissionError, errno.EACCES),
    HTTPStatus.FORBIDDEN: (PermissionError, errno.EACCES),
    HTTPStatus.NOT_FOUND: (FileNotFoundError, errno.ENOENT),
}

_PASSING = {
    HTTPStatus.REQUEST_TIMEOUT,
    HTTPStatus.TOO_MANY_REQUESTS,
    HTTPStatus.INTERNAL_SERVER_ERROR,
    HTTPStatus.BAD_GATEWAY,
    HTTPStatus.SERVICE_UNAVAILABLE,
    HTTPStatus.GATEWAY_TIMEOUT,
}
"""What a service answers that is busy or restarts, or the proxy before it. Of half of them, s3fs makes EIO."""

_REASON_MAX = 300
"""How many characters of a client's message are kept: Azure's ends with the whole answer as XML."""

_PACKAGES = {"aiohttp", "aiobotocore", "azure", "botocore", "gcsfs", "google", "requests", "urllib3"}
"""The packages whose errors are no OSErrors, or OSErrors without a number."""


OPTION_ERRORS = (AttributeError, TypeError, ValueError)
"""What clients raise for options that they do not know or cannot use."""


class StorageClient:
    """Answers of one filesystem's client. Any thread may use it.

    Parameters
    ----------
    filesystem : fsspec.AbstractFileSystem
        The filesystem.
    """

    def __init__(self, filesystem: AbstractFileSystem) -> None:
        self._options: Mapping[str, Any] = filesystem.storage_options
        self._has_answered = False

    @contextmanager
    def answers(self, path: str) -> Iterator[None]:
        """Raise what the client raises as `client_errors` does, and what it says of its options as a ConfigError."""
        try:
            with client_errors(path):
                yield
        except (KeyGroupsError, OSError) as error:
            self._has_answered |= not isinstance(error, StorageUnavailable)
            raise
        except OPTION_ERRORS as error:
            # Clients look at most options at the first request only.
            if self._has_answered:
                raise
            raise refused_options(self._options, error) from without_secrets(error)
        else:
            self._has_answered = True


def refused_options(options: Mapping[str, Any], error: Exception) -> ConfigError:
    """Return the error that says that a client cannot work with its options; their values may be secrets."""
    reason = (
        "the client of the storage cannot work with them, or with what the environment sets "
        f"({reason_of(error)}): check them"
    )
    return ConfigError("storage_options", sorted(options.keys() - {"use_listings_cache"}), reason)


@contextmanager
def client_errors(path: str) -> Iterator[None]:
    """Raise what clients of object stores raise as an OSError, and redact secrets in their messages.

    Parameters
    ----------
    path : str
        What is read or written, for the errors.

    Raises
    ------
    PermissionError
        The service refuses the request.
    FileNotFoundError
        The file, or its bucket, does not exist.
    StorageUnavailable
        The service does not answer, or cannot do what is asked at the moment.
    """
    try:
        yield
    except Exception as error:
        status, cause = status_of(error), without_secrets(error)
        meaning, number = _MEANINGS.get(status, (None, 0))
        if meaning is not None and getattr(error, "filename", None) is None:
            raise meaning(number, reason_of(error), path) from cause
        if status in _PASSING or (_is_of_client(error) and getattr(error, "errno", None) is None):
            raise StorageUnavailable(path, reason_of(error)) from cause
        raise


def status_of(error: BaseException) -> int | None:
    """Return the HTTP status behind an error; each client keeps it in a different place."""
    for one in (error, error.__cause__):
        response = getattr(one, "response", None)
        if isinstance(response, dict):
            status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
        else:
            status = getattr(one, "status_code", None) or getattr(one, "code", None)
        if isinstance(status, int):
            return status
    # Of a refusal, gcsfs keeps only this text.
    is_refusal = type(error) is OSError and str(error).startswith("Forbidden: ")
    return HTTPStatus.FORBIDDEN if is_refusal else None


def _is_of_client(error: BaseException) -> bool:
    # adlfs raises a RuntimeError when a file cannot be removed.
    causes = (error, error.__cause__) if isinstance(error, RuntimeError) else (error,)
    return any(type(one).__module__.partition(".")[0] in _PACKAGES for one in causes)


def without_secrets(error: Exception) -> Exception | None:
    """Return an error as the cause of another one; None if its message has secrets, which a traceback would show."""
    return error if redacted(str(error)) == str(error) else None


def reason_of(error: Exception) -> str:
    """Return what an error says, on one line and without secrets."""
    text = " ".join(str(error).split())
    # Redacted before it is cut, or the end of a password would be missing by which it is known.
    return printable(redacted(text if isinstance(error, OSError) else f"{type(error).__name__}: {text}"), _REASON_MAX)


class ClientFile:
    """An open file that raises what `StorageClient.answers` says. One thread at a time may use it.

    It wraps reading, and delegates the rest, so that it is a file for pyarrow and for decompressors.
    """

    def __init__(self, file: BinaryIO, client: StorageClient, path: str) -> None:
        self._file = file
        self._client = client
        self._path = path

    def read(self, size: int = -1) -> bytes:
        """Read bytes, to the end by default."""
        with self._client.answers(self._path):
            return self._file.read(size)

    def __enter__(self) -> ClientFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)
