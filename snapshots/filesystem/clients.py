"""Turns the errors of object store clients into `OSError`s, the only ones that callers need to know.

Each client raises something else for the same answer of its service. For a refusal s3fs raises a PermissionError (but
an OSError for status 401), gcsfs an OSError without a number, and adlfs an error of Azure's own, which is no OSError.
The clients inside deltalake and pyarrow raise an OSError without a number, with all that they know in its text.
"""

from __future__ import annotations

import errno
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, BinaryIO

from keygroups.context_managers import contextmanager
from keygroups.errors import ConfigError, KeyGroupsError
from keygroups.safe_text import printable, text_of
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

_REASON_MAX = 600
"""How many characters of a client's message are kept: Azure's ends with the whole answer as XML."""

_STATUS_NAMES = ("status_code", "status", "code")
_STATUSES = range(100, 600)
"""Codes of other errors mean something else."""

_REFUSED_AT_AWS = {
    "AccessDeniedException",
    "ExpiredTokenException",
    "IncompleteSignatureException",
    "InvalidSignatureException",
    "MissingAuthenticationTokenException",
    "UnrecognizedClientException",
}
"""What Glue and DynamoDB answer with status 400, as they do if they are busy."""

_STATUS_IN_TEXT = re.compile(r"non-2xx status code\W+([1-5]\d\d) |\(HTTP status ([1-5]\d\d)\)")
"""Where deltalake's client and Arrow's client of S3 name the status."""

_ARROWS_NAMES = {
    "ACCESS_DENIED": HTTPStatus.FORBIDDEN,
    "INVALID_ACCESS_KEY_ID": HTTPStatus.FORBIDDEN,
    "INVALID_CLIENT_TOKEN_ID": HTTPStatus.FORBIDDEN,
    "MISSING_AUTHENTICATION_TOKEN": HTTPStatus.FORBIDDEN,
    "SIGNATURE_DOES_NOT_MATCH": HTTPStatus.FORBIDDEN,
    "UNRECOGNIZED_CLIENT": HTTPStatus.FORBIDDEN,
    "NO_SUCH_BUCKET": HTTPStatus.NOT_FOUND,
}
"""What Arrow's client of S3 says in place of a status."""

_ARROWS_NAME = re.compile(rf"AWS Error ({'|'.join(_ARROWS_NAMES)})\b")

_NO_ANSWER = re.compile(r"\bGeneric (S3|GCS|MicrosoftAzure|HTTP) error|AWS Error NETWORK_CONNECTION")
"""How these clients begin when they have had no answer, after some attempts of their own."""

_WRONG_OPTIONS = re.compile(
    r"Generic Config error|must be specified|Invalid Access Key|builder error|redirect without LOCATION"
)
"""What deltalake's client says of options with which it cannot even ask."""

_DELTALAKE = "_internal"
"""The module of deltalake's errors."""

_COLOUR = re.compile(r"\x1b\[\d*m")

_REFUSALS = {"AuthenticationException", "error_perm"}
"""Errors of the clients of SFTP (paramiko) and FTP, whose servers answer with no status of HTTP."""

_ONE_CONNECTION = {"ftp", "sftp"}

_PACKAGES = {
    "aiobotocore",
    "aiohttp",
    "azure",
    "botocore",
    "ftplib",
    "gcsfs",
    "google",
    "paramiko",
    "requests",
    "urllib3",
}
"""The packages whose errors are no OSErrors, or OSErrors without a number."""

OPTION_ERRORS = (AttributeError, KeyError, TypeError, ValueError)
"""What clients raise for options that they do not know or cannot use."""


class StorageClient:
    """Answers of one filesystem's client. Any thread may use it.

    All threads take turns with the clients of FTP and SFTP. These have one connection, on which a thread would take
    the answer to another one's request, and leave the other one waiting for ever.

    Parameters
    ----------
    filesystem : fsspec.AbstractFileSystem
        The filesystem.
    """

    _shared_turn = threading.RLock()

    def __init__(self, filesystem: AbstractFileSystem) -> None:
        names = (filesystem.protocol,) if isinstance(filesystem.protocol, str) else filesystem.protocol
        self._turn = nullcontext() if _ONE_CONNECTION.isdisjoint(names) else self._shared_turn
        self._options: Mapping[str, Any] = filesystem.storage_options
        self._has_answered = False

    @contextmanager
    def answers(self, path: str) -> Iterator[None]:
        """Raise what the client raises as `client_errors` does, and what it says of its options as a ConfigError."""
        try:
            with self._turn, client_errors(path):
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
    except KeyGroupsError:
        raise
    except Exception as error:
        said = _said_by_client(error)
        status, cause = status_of(said), without_secrets(said)
        meaning, number = _MEANINGS.get(status, (None, 0))
        if meaning is not None and getattr(error, "filename", None) is None:
            raise meaning(number, reason_of(said), path) from cause
        if status in _PASSING or said is not error or _is_of_client(error):
            raise StorageUnavailable(path, reason_of(said)) from cause
        raise


def _said_by_client(error: Exception) -> Exception:
    """Return the error of the client behind one of fsspec.

    adlfs raises a RuntimeError when a file cannot be removed. fsspec's own client of HTTP says of every failed request
    that the file does not exist.
    """
    cause = error.__cause__
    if not isinstance(cause, Exception) or _package_of(cause) not in _PACKAGES:
        return error
    is_mistaken = (
        isinstance(error, FileNotFoundError) and error.errno is None and status_of(cause) != HTTPStatus.NOT_FOUND
    )
    return cause if isinstance(error, RuntimeError) or is_mistaken else error


def status_of(error: BaseException) -> int | None:
    """Return the HTTP status behind an error; each client keeps it in a different place."""
    for one in (error, error.__cause__):
        response = getattr(one, "response", None)
        if isinstance(response, dict):
            is_refused = response.get("Error", {}).get("Code") in _REFUSED_AT_AWS
            answered = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
            status = HTTPStatus.FORBIDDEN if is_refused else answered
        else:
            values = (getattr(place, name, None) for place in (one, response) for name in _STATUS_NAMES)
            status = next((value for value in values if isinstance(value, int) and value in _STATUSES), None)
        if isinstance(status, int):
            return status
    if type(error).__name__ in _REFUSALS:
        return HTTPStatus.FORBIDDEN
    return _status_in(_text_of(error)) if _says_all_in_text(error) else None


def _says_all_in_text(error: BaseException) -> bool:
    """Return whether a client may have written the text. Other errors may quote rows, which say anything."""
    return isinstance(error, OSError) or _package_of(error) == _DELTALAKE


def _status_in(text: str) -> int | None:
    if text.startswith("Forbidden: "):  # all that gcsfs keeps of a refusal
        return HTTPStatus.FORBIDDEN
    if named := _ARROWS_NAME.search(text):
        return _ARROWS_NAMES[named[1]]
    found = _STATUS_IN_TEXT.search(text)
    return int(found[1] or found[2]) if found else None


def is_refusal(error: BaseException) -> bool:
    """Return whether a client says that the same request would fail again.

    That is what a service does not accept, or options with which the client cannot ask.
    """
    return status_of(error) not in {None, *_PASSING} or _WRONG_OPTIONS.search(_text_of(error)) is not None


def _is_of_client(error: Exception) -> bool:
    if getattr(error, "errno", None) is not None:
        return False
    if _says_all_in_text(error) and _NO_ANSWER.search(_text_of(error)):
        return not is_refusal(error)
    return _package_of(error) in _PACKAGES


def _package_of(error: BaseException) -> str:
    return type(error).__module__.partition(".")[0]


def without_secrets(error: Exception) -> Exception | None:
    """Return an error as the cause of another one; None if its message has secrets, which a traceback would show."""
    return error if redacted(str(error)) == str(error) else None


def reason_of(error: Exception) -> str:
    """Return what an error says, on one line and without secrets."""
    text = _text_of(error)
    # Redacted before it is cut, or the end of a password would be missing by which it is known.
    return printable(redacted(text if isinstance(error, OSError) else f"{type(error).__name__}: {text}"), _REASON_MAX)


def _text_of(error: BaseException) -> str:
    """Return the text of an error on one line; deltalake's has colours for a terminal."""
    return " ".join(_COLOUR.sub("", text_of(error)).split())


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

    def seek(self, offset: int, whence: int = 0) -> int:
        """Go to a position, and return it; paramiko's files return nothing."""
        with self._client.answers(self._path):
            self._file.seek(offset, whence)
            return self._file.tell()

    def __enter__(self) -> ClientFile:
        return self

    def __exit__(self, *_: object) -> None:
        with self._client.answers(self._path):
            self._file.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)
