"""Folders on object stores: the condition is the store's, so it is tried out before it is trusted."""

from __future__ import annotations

import errno
import threading
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from http import HTTPStatus
from typing import Any, BinaryIO, ClassVar, cast

from snapshots.errors import StorageUnavailable, UnsafeFilesystem
from snapshots.filesystem.folder import FileInfo, Folder, redacted
from snapshots.filesystem.retry import attempts

SINGLE_PUT_BYTES_MAX = 512 * 2**20
"""Up to here an object is put in one request: what was probed is the condition of that, not that of several parts."""

READ_AHEAD_BYTES = 2**20
"""Read beyond what was asked for: as much as a request costs in time, far less than the 50 MiB that s3fs would."""

# Their errors are no OSErrors.
_CLIENT_PACKAGES = {"aiohttp", "aiobotocore", "azure", "botocore", "gcsfs", "google", "requests", "urllib3"}


class ObjectFolder(Folder):
    """A folder on an object store with conditional writes.

    An endpoint that ignores the condition would let two writers win without a word, so the first `create` of a process
    tries it out on a scratch object, once for each endpoint and bucket.
    """

    put_options: ClassVar[dict[str, Any]] = {}
    """Of fsspec's `pipe_file`."""

    read_options: ClassVar[dict[str, Any]] = {}
    """Of fsspec's `cat_file`."""

    @property
    def endpoint(self) -> str:
        """Where requests go, without credentials."""
        return ""

    @property
    def is_known_to_be_safe(self) -> bool:
        """Whether the endpoint needs no trial."""
        return False

    def create(self, name: str, data: bytes) -> None:
        """Put an object whole, on the condition that there is none."""
        if not self.is_known_to_be_safe:
            _require_conditional_put(self)
        self.create_untried(name, data)

    def create_untried(self, name: str, data: bytes) -> None:
        """Put an object on the condition that there is none, trusting the endpoint."""
        path = self.path(name)
        for _ in attempts():
            try:
                with self._answers(name):
                    self.filesystem.pipe_file(path, bytes(data), mode="create", **self.put_options)
            except OSError as error:
                if self._is_taken(error):
                    raise FileExistsError(errno.EEXIST, "the object exists", path) from error
                if not self._is_conflict(error):
                    raise
                conflict = error
            else:
                return
        raise StorageUnavailable(path, "other conditional writes were under way all the while") from conflict

    def write(self, name: str, data: bytes) -> None:
        """Put an object."""
        with self._answers(name):
            self.filesystem.pipe_file(self.path(name), bytes(data), **self.put_options)

    def replace(self, name: str, data: bytes) -> None:
        """Put an object over the old one."""
        self.write(name, data)

    def read(self, name: str, start: int | None = None, end: int | None = None) -> bytes:
        """Read an object, or its bytes from `start` to `end`, in one request."""
        try:
            with self._answers(name):
                data: bytes = self.filesystem.cat_file(self.path(name), start=start, end=end, **self.read_options)
                return data
        except OSError as error:
            if status_of(error) == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
                return b""
            raise

    def open(self, name: str) -> BinaryIO:
        """Open an object for random reads."""
        with self._answers(name):
            file = self.filesystem.open(self.path(name), "rb", block_size=READ_AHEAD_BYTES)
        # Reads and closes, and is the file's own for the rest; pyarrow asks for no more.
        return cast("BinaryIO", _ObjectFile(file, self, name))

    def size(self, name: str) -> int:
        """Return an object's size in bytes."""
        with self._answers(name):
            return super().size(name)

    def names(self, folder: str) -> list[str]:
        """List the names below a prefix."""
        with self._answers(folder):
            return super().names(folder)

    def files(self, folder: str = "") -> list[FileInfo]:
        """List the objects below a prefix."""
        with self._answers(folder):
            return super().files(folder)

    def sizes(self, prefix: str) -> dict[str, int]:
        """Return the sizes of the objects with a prefix."""
        with self._answers(prefix):
            return super().sizes(prefix)

    def delete(self, names: Sequence[str]) -> None:
        """Delete objects, as many in one request as the store takes."""
        if not names:
            return
        with self._answers(names[0]):
            try:
                self.filesystem.rm([self.path(name) for name in names])
            except FileNotFoundError:
                super().delete(names)

    def _is_taken(self, error: OSError) -> bool:
        return isinstance(error, FileExistsError)

    def _is_conflict(self, error: OSError) -> bool:
        """Return whether another conditional write was under way, so that nothing is decided."""
        return False

    @contextmanager
    def _answers(self, name: str) -> Iterator[None]:
        """Turn the errors of clients that are no OSErrors into one, without what may be secret in their words."""
        try:
            yield
        except OSError:
            raise
        except Exception as error:
            if type(error).__module__.partition(".")[0] not in _CLIENT_PACKAGES:
                raise
            said = f"{type(error).__name__}: {error}"
            cause = error if redacted(said) == said else None
            raise StorageUnavailable(self.path(name), redacted(said)) from cause


def status_of(error: OSError) -> int | None:
    """Return the HTTP status of the answer behind an error, which each client keeps in another place."""
    cause = error.__cause__
    response = getattr(cause, "response", None)
    if isinstance(response, dict):
        status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
    else:
        status = getattr(cause, "status_code", None) or getattr(cause, "code", None)
    return status if isinstance(status, int) else None


class _ObjectFile:
    """An open object whose errors are those of its folder."""

    def __init__(self, file: BinaryIO, folder: ObjectFolder, name: str) -> None:
        self._file = file
        self._folder = folder
        self._name = name

    def read(self, size: int = -1) -> bytes:
        with self._folder._answers(self._name):
            return self._file.read(size)

    def __enter__(self) -> _ObjectFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


class GcsFolder(ObjectFolder):
    """A folder on Google Cloud Storage: the condition is ``ifGenerationMatch=0``."""

    put_options: ClassVar[dict[str, Any]] = {"chunksize": SINGLE_PUT_BYTES_MAX}

    @property
    def endpoint(self) -> str:
        """Where requests go."""
        return redacted(str(getattr(self.filesystem, "_endpoint", None) or "gs"))


class AzureFolder(ObjectFolder):
    """A folder on Azure Blob Storage: the condition is ``overwrite=False``."""

    @property
    def endpoint(self) -> str:
        """Where requests go."""
        return redacted(str(getattr(self.filesystem, "account_url", "az")))


_tried: dict[tuple[type[ObjectFolder], str, str], bool] = {}
_trying = threading.Lock()


def _require_conditional_put(folder: ObjectFolder) -> None:
    """Try out, once per process, whether an endpoint heeds the condition; refuse it if not."""
    key = (type(folder), folder.endpoint, folder.root.partition("/")[0])
    with _trying:
        if key not in _tried:
            _tried[key] = _heeds_condition(folder)
    if not _tried[key]:
        raise UnsafeFilesystem(folder.uri, "the endpoint replaced an object that it was to create only if absent")


def _heeds_condition(folder: ObjectFolder) -> bool:
    name = f"probe/{uuid.uuid4().hex}"
    try:
        folder.create_untried(name, b"1")
        folder.create_untried(name, b"2")
    except FileExistsError:
        return True
    except OSError as error:
        # Some endpoints do not know the header, and say so.
        if error.errno != errno.ENOSYS:
            raise
        return False
    finally:
        with suppress(OSError):
            folder.delete([name])
    return False
