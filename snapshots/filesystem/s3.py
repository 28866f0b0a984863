"""Folders on S3 and on stores with the same protocol."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, ClassVar
from urllib.parse import urlsplit

from snapshots.filesystem.clients import OPTION_ERRORS, refused_options, status_of
from snapshots.filesystem.folder import redacted
from snapshots.filesystem.objects import SINGLE_PUT_BYTES_MAX, ObjectFolder

_AWS = ("amazonaws.com", "amazonaws.com.cn")


class S3Folder(ObjectFolder):
    """A folder on S3: the condition is ``If-None-Match: *``, which AWS respects and others may not."""

    put_options: ClassVar[dict[str, Any]] = {"chunksize": SINGLE_PUT_BYTES_MAX}

    @property
    def read_options(self) -> Mapping[str, Any]:
        """Keep s3fs from requesting the size of a whole object before it reads it."""
        # Before 2026.3, s3fs always reads an object in one request, and does not know the option.
        is_known = "max_concurrency" in inspect.signature(self.filesystem._cat_file).parameters
        return {"max_concurrency": 1} if is_known else {}

    @property
    def endpoint(self) -> str:
        """The address to which requests go, whether it is set in an option, the environment or a profile."""
        try:
            return redacted(str(self.filesystem.s3.meta.endpoint_url))
        except OPTION_ERRORS as error:  # this makes the client
            raise refused_options(self.filesystem.storage_options, error) from error

    @property
    def is_known_to_be_safe(self) -> bool:
        """Whether the endpoint is AWS itself."""
        host = urlsplit(self.endpoint).hostname or ""
        return any(host == domain or host.endswith(f".{domain}") for domain in _AWS)

    def _is_taken(self, error: OSError) -> bool:
        # s3fs expects the endpoint to name the failed condition, but not every endpoint does.
        return super()._is_taken(error) or status_of(error) == HTTPStatus.PRECONDITION_FAILED

    def _is_conflict(self, error: OSError) -> bool:
        return status_of(error) == HTTPStatus.CONFLICT
