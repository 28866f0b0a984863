"""Folders on the supported filesystems, with the operation on which commits depend: create if absent."""

from __future__ import annotations

from snapshots.filesystem.clients import ClientFile, StorageClient, client_errors, is_refusal, reason_of
from snapshots.filesystem.folder import FileInfo, Folder, check_uri, redacted
from snapshots.filesystem.local import LocalFolder
from snapshots.filesystem.memory import MemoryFolder
from snapshots.filesystem.objects import AzureFolder, GcsFolder, ObjectFolder
from snapshots.filesystem.opening import divided, filesystem_of, open_folder, options_of, uri_text
from snapshots.filesystem.retry import attempts, is_transient
from snapshots.filesystem.s3 import S3Folder

__all__ = [
    "AzureFolder",
    "ClientFile",
    "FileInfo",
    "Folder",
    "GcsFolder",
    "LocalFolder",
    "MemoryFolder",
    "ObjectFolder",
    "S3Folder",
    "StorageClient",
    "attempts",
    "check_uri",
    "client_errors",
    "divided",
    "filesystem_of",
    "is_refusal",
    "is_transient",
    "open_folder",
    "options_of",
    "reason_of",
    "redacted",
    "uri_text",
]
