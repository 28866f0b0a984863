"""Folders on object stores. Commits rely on the store's conditional put, so that is tried out before it is trusted."""

from __future__ import annotations

import errno
import threading
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, BinaryIO, ClassVar, cast

from keygroups.context_managers import contextmanager
from snapshots.filesystem.clients import ClientFile, StorageClient, status_of
from snapshots.filesystem.errors import BucketMissing, StorageUnavailable, UnsafeFilesystem
from snapshots.filesystem.folder import Folder, redacted
from snapshots.filesystem.retry import attempts

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

SINGLE_PUT_BYTES_MAX = 512 * 2**20
"""Up to this size an object is put in one request. The trial covers only the condition of such a request."""

READ_AHEAD_BYTES = 2**20
"""How much is read ahead. Reading it takes about as long as a request, and it is far less than the 50 MiB of s3fs."""


class ObjectFolder(Folder):
    """A folder on an object store with conditional writes.

    An endpoint that ignores the condition would silently let two writers win. So the first `create` of a process tries
    it out on a scratch object, once per endpoint and bucket.
    """

    put_options: ClassVar[dict[str, Any]] = {}
    """Extra arguments for fsspec's `pipe_file`."""

    def __init__(self, filesystem: AbstractFileSystem, root: str) -> None:
        super().__init__(filesystem, root)
        self._client = StorageClient(filesystem)

    @property
    def read_options(self) -> Mapping[str, Any]:
        """Extra arguments for fsspec's `cat_file`."""
        return {}

    @property
    def endpoint(self) -> str:
        """The address to which requests go, without credentials."""
        return ""

    @property
    def is_known_to_be_safe(self) -> bool:
        """Whether the endpoint can be trusted without a trial."""
        return False

    def create(self, name: str, data: bytes) -> None:
        """Put an object on the condition that it does not exist."""
        if not self.is_known_to_be_safe:
            _require_conditional_put(self)
        self.create_untried(name, data)

    def create_untried(self, name: str, data: bytes) -> None:
        """Put an object on the condition that it does not exist, without a trial of the endpoint."""
        path = self.path(name)
        for _ in attempts():
            try:
                with self._answers(name):
                    self.filesystem.pipe_file(path, bytes(data), mode="create", **self.put_options)
            except OSError as error:
                if isinstance(error, FileNotFoundError):
                    raise _no_bucket(self, error) from error
                if self._is_taken(error):
                    raise FileExistsError(errno.EEXIST, "the object exists", path) from error
                if not self._is_conflict(error):
                    raise
                conflict = error
            else:
                return
        raise StorageUnavailable(path, "other conditional writes were under way at every attempt") from conflict

    def write(self, name: str, data: bytes) -> None:
        """Put an object under an unused name."""
        try:
            with self._answers(name):
                self.filesystem.pipe_file(self.path(name), bytes(data), **self.put_options)
        except FileNotFoundError as error:
            raise _no_bucket(self, error) from error

    def replace(self, name: str, data: bytes) -> None:
        """Put an object over the old one."""
        self.write(name, data)

    def read(self, name: str, start: int | None = None, end: int | None = None) -> bytes:
        """Read an object, or its bytes from `start` up to `end`, in one request."""
        try:
            with self._answers(name):
                data: bytes = self.filesystem.cat_file(self.path(name), start=start, end=end, **self.read_options)
                return data
        except OSError as error:
            if status_of(error) == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
                return b""
            raise

    def exists(self, name: str) -> bool:
        """Return whether an object exists, in one request; clients would also look for a folder of that name."""
        try:
            self.read(name, 0, 1)
        except FileNotFoundError:
            return False
        return True

    def open(self, name: str) -> BinaryIO:
        """Open an object for random reads."""
        with self._answers(name):
            file = self.filesystem.open(self.path(name), "rb", block_size=READ_AHEAD_BYTES)
        return cast("BinaryIO", _ObjectFile(file, self, name))

    def delete(self, names: Sequence[str]) -> None:
        """Delete objects, as many in one request as the store allows."""
        if not names:
            return
        with self._answers(names[0]):
            try:
                self.filesystem.rm([self.path(name) for name in names])
            except FileNotFoundError:
                self._delete_what_is_there(names)

    def _delete_what_is_there(self, names: Sequence[str]) -> None:
        for name in names:
            with suppress(FileNotFoundError), self._answers(name):
                # Not `rm_file`, which adlfs does not have with every fsspec.
                self.filesystem.rm([self.path(name)])

    def _is_taken(self, error: OSError) -> bool:
        return isinstance(error, FileExistsError)

    def _is_conflict(self, error: OSError) -> bool:
        """Return whether another conditional write was under way, so that nothing is decided yet."""
        return False

    @contextmanager
    def _answers(self, name: str) -> Iterator[None]:
        """Turn what the client raises into the errors of folders."""
        with super()._answers(name), self._client.answers(self.path(name)):
            yield


def _no_bucket(folder: Folder, error: FileNotFoundError) -> BucketMissing:
    return BucketMissing(folder.uri, redacted(error.strerror or str(error)))


class _ObjectFile(ClientFile):
    """An open object that raises the errors of its folder."""

    def __init__(self, file: BinaryIO, folder: ObjectFolder, name: str) -> None:
        super().__init__(file, folder._client, folder.path(name))
        self._folder = folder
        self._name = name

    def read(self, size: int = -1) -> bytes:
        with self._folder._answers(self._name):
            return self._file.read(size)


class GcsFolder(ObjectFolder):
    """A folder on Google Cloud Storage: the condition is ``ifGenerationMatch=0``."""

    put_options: ClassVar[dict[str, Any]] = {"chunksize": SINGLE_PUT_BYTES_MAX}

    @property
    def endpoint(self) -> str:
        """The address to which requests go."""
        return redacted(str(getattr(self.filesystem, "_endpoint", None) or "gs"))


class AzureFolder(ObjectFolder):
    """A folder on Azure Blob Storage: the condition is ``overwrite=False``."""

    @property
    def uri(self) -> str:
        """The folder as a URI, for messages, with its account: containers of two accounts may have the same name."""
        account = self.filesystem.account_name
        if self.endpoint != f"https://{account}.blob.core.windows.net":
            return super().uri  # the address of an endpoint elsewhere is in the storage options
        container, _, path = self.root.partition("/")
        return f"abfs://{container}@{account}.dfs.core.windows.net/{path}"

    @property
    def endpoint(self) -> str:
        """The address to which requests go."""
        return redacted(str(getattr(self.filesystem, "account_url", "az")))


_tried: dict[tuple[type[ObjectFolder], str, str], bool] = {}
_trying = threading.Lock()


def _require_conditional_put(folder: ObjectFolder) -> None:
    """Try out, once per process, whether an endpoint respects the condition; raise if it does not."""
    key = (type(folder), folder.endpoint, folder.root.partition("/")[0])
    with _trying:
        if key not in _tried:
            _tried[key] = _heeds_condition(folder)
    if not _tried[key]:
        raise UnsafeFilesystem(folder.uri, "the endpoint replaced an object that it should create only if absent")


def _heeds_condition(folder: ObjectFolder) -> bool:
    name = f"probe/{uuid.uuid4().hex}"
    try:
        folder.create_untried(name, b"1")
        folder.create_untried(name, b"2")
    except FileExistsError:
        return True
    except OSError as error:
        # Some endpoints reject the header because they do not know it.
        if error.errno != errno.ENOSYS:
            raise
        return False
    finally:
        with suppress(OSError):
            folder.delete([name])
    return False
