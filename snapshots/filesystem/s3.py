"""Folders on S3 and on what speaks its protocol."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any, ClassVar
from urllib.parse import urlsplit

from snapshots.filesystem.folder import redacted
from snapshots.filesystem.objects import SINGLE_PUT_BYTES_MAX, ObjectFolder

_AWS = ("amazonaws.com", "amazonaws.com.cn")


class S3Folder(ObjectFolder):
    """A folder on S3: the condition is ``If-None-Match: *``, which AWS heeds and others may not."""

    put_options: ClassVar[dict[str, Any]] = {"chunksize": SINGLE_PUT_BYTES_MAX}

    @property
    def endpoint(self) -> str:
        """Where requests go, wherever that is set: in an option, the environment or a profile."""
        return redacted(str(self.filesystem.s3.meta.endpoint_url))

    @property
    def is_known_to_be_safe(self) -> bool:
        """Whether it is AWS itself."""
        host = urlsplit(self.endpoint).hostname or ""
        return any(host == domain or host.endswith(f".{domain}") for domain in _AWS)

    def read(self, name: str, start: int | None = None, end: int | None = None) -> bytes:
        """Read an object, or its bytes from `start` to `end`, in one request."""
        try:
            with self._answers(name):
                # Without this, s3fs asks for the size of a whole object before it reads it.
                data: bytes = self.filesystem.cat_file(self.path(name), start=start, end=end, max_concurrency=1)
                return data
        except OSError as error:
            if _status(error) == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
                return b""
            raise

    def exists(self, name: str) -> bool:
        """Return whether there is such an object, in one request; s3fs would look for a folder of that name, too."""
        try:
            self.read(name, 0, 1)
        except FileNotFoundError:
            return False
        return True

    def _is_taken(self, error: OSError) -> bool:
        # Not every endpoint names the condition that failed, as s3fs wants it.
        return super()._is_taken(error) or _status(error) == HTTPStatus.PRECONDITION_FAILED

    def _is_conflict(self, error: OSError) -> bool:
        return _status(error) == HTTPStatus.CONFLICT


def _status(error: OSError) -> int | None:
    """Return the HTTP status of a translated answer."""
    response = getattr(error.__cause__, "response", None) or {}
    status: int | None = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
    return status
