"""Opens a folder from a URI: the supported protocols and what each of them needs."""

from __future__ import annotations

import os
from typing import Any, NamedTuple

from keygroups.arguments import check_location, check_settings
from keygroups.errors import ConfigError
from snapshots.filesystem.clients import OPTION_ERRORS, client_errors, refused_options
from snapshots.filesystem.errors import FilesystemNotInstalled, UnsupportedFilesystem
from snapshots.filesystem.folder import Folder, check_uri, redacted
from snapshots.filesystem.local import LocalFolder
from snapshots.filesystem.memory import MemoryFolder
from snapshots.filesystem.objects import AzureFolder, GcsFolder, ObjectFolder
from snapshots.filesystem.s3 import S3Folder


class _Kind(NamedTuple):
    folder: type[Folder]
    extra: str = ""


_LOCAL, _MEMORY = _Kind(LocalFolder), _Kind(MemoryFolder)
_S3, _GCS, _AZURE = _Kind(S3Folder, "s3"), _Kind(GcsFolder, "gcs"), _Kind(AzureFolder, "azure")
_KINDS = {
    "file": _LOCAL,
    "local": _LOCAL,
    "memory": _MEMORY,
    "s3": _S3,
    "s3a": _S3,
    "gs": _GCS,
    "gcs": _GCS,
    "abfs": _AZURE,
    "abfss": _AZURE,
    "az": _AZURE,
}


def open_folder(uri: str | os.PathLike[str], storage_options: dict[str, Any] | None = None) -> Folder:
    """Open a folder by URI or path.

    Parameters
    ----------
    uri : str or path
        Any fsspec URI of a supported protocol, or a local path.
    storage_options : dict, optional
        Passed to the fsspec filesystem. Put credentials here or in the environment.

    Raises
    ------
    UnsupportedFilesystem
        Files cannot be created atomically there.
    FilesystemNotInstalled
        The package of the filesystem is missing.
    ConfigError
        The URI is no text or path, it has a password or a query, or the storage options are refused.

    Examples
    --------
    >>> folder = open_folder("memory://example")
    >>> folder.create("manifest", b"1")
    >>> folder.read("manifest")
    b'1'
    """
    from fsspec.utils import get_protocol  # not loaded by programs without snapshots

    # Checked before the filesystem is created, because that may need a package or a connection.
    uri = uri_text(uri)
    protocol = get_protocol(uri)
    kind = _KINDS.get(protocol)
    if kind is None:
        raise UnsupportedFilesystem(protocol)
    check_uri(uri)
    options = options_of(storage_options)
    if issubclass(kind.folder, ObjectFolder):
        # A cached listing would miss versions that others have committed.
        options["use_listings_cache"] = False
    return kind.folder(*filesystem_of(uri, options))


def options_of(storage_options: object) -> dict[str, Any]:
    """Return a copy of what a user has passed as the options of a storage, {} for None; raises `ConfigError`."""
    return {} if storage_options is None else check_settings("storage_options", storage_options)


def filesystem_of(uri: str, options: dict[str, Any]) -> tuple[Any, str]:
    """Return the fsspec filesystem of a URI, of whatever protocol, and the path in it.

    Raises
    ------
    FilesystemNotInstalled
        The package of the filesystem is missing.
    ConfigError
        fsspec has no filesystem of this protocol, or refuses the options.
    """
    import fsspec.core  # not loaded by programs without files
    from fsspec.utils import get_protocol

    protocol = get_protocol(uri)
    # The registry has what the program itself has registered as a class.
    if protocol not in fsspec.available_protocols() and protocol not in fsspec.registry:
        raise ConfigError("uri", redacted(uri), f"fsspec has no filesystem for {protocol}://: check the address")
    try:
        with client_errors(redacted(uri)):  # some clients connect at once
            return fsspec.core.url_to_fs(uri, **options)  # type: ignore[no-any-return]
    except ImportError as error:
        if protocol not in _KINDS:
            raise ConfigError("uri", redacted(uri), f"a package is missing: {error}") from error
        raise FilesystemNotInstalled(protocol, _KINDS[protocol].extra) from error
    except OPTION_ERRORS as error:
        raise refused_options(options, error) from error


def uri_text(uri: str | os.PathLike[str]) -> str:
    """Return the URI or path of a folder as text; raises `ConfigError` if it is neither, or empty."""
    return check_location("uri", uri, reason="name a folder by an fsspec URI or a local path")


def divided(uri: str) -> tuple[str, str]:
    """Divide the URI of an operator's folder into the folder above and the operator's id.

    Raises
    ------
    ConfigError
        The URI has a password or a query.

    Examples
    --------
    >>> divided("s3://bucket/state/visits/"), divided("visits")
    (('s3://bucket/state/', 'visits'), ('.', 'visits'))
    """
    check_uri(uri)
    above, slash, operator_id = uri.rstrip("/").rpartition("/")
    if operator_id in (".", "..") and "://" not in uri:
        above, slash, operator_id = os.path.realpath(uri).rpartition("/")
    return f"{above}{slash}" or ".", operator_id
