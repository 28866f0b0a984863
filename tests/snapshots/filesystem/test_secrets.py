"""Secrets stay where they were put: in the options of the filesystem."""

from __future__ import annotations

import string
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from async_op.connectors import DeltaSink, FileSink, FileSource
from keygroups import ConfigError
from snapshots import FilesystemNotInstalled, SnapshotStore, StorageUnavailable, UnsupportedFilesystem
from snapshots.filesystem import open_folder, redacted
from tests.snapshot_kit import parts

SECRETS = st.text(string.ascii_letters + string.digits + "/+=%~!$&,;@:-._", min_size=8, max_size=40).map(
    "kept~{}".format
)
NAMES = st.text(string.ascii_lowercase, min_size=1, max_size=5)
PROTOCOLS = st.sampled_from(["s3", "s3a", "gs", "gcs", "abfs", "abfss", "az"])


def shown(error: BaseException) -> str:
    """Return everything that an error shows: words, attributes, and those of what caused it."""
    lines = traceback.TracebackException.from_exception(error, capture_locals=False)
    seen: BaseException | None = error
    words = []
    while seen is not None:
        words += [str(seen), repr(seen), repr(vars(seen)), repr(seen.args)]
        seen = seen.__cause__ or (None if seen.__suppress_context__ else seen.__context__)
    # Without the lines of source, which hold the names of variables only.
    return "\n".join([*words, *lines.format_exception_only()])


def opened(uri: str, options: dict[str, Any] | None = None) -> list[Callable[[], object]]:
    return [
        lambda: open_folder(uri, options),
        lambda: SnapshotStore(uri, "enrich", storage_options=options),
        lambda: SnapshotStore.at(uri, storage_options=options),
    ]


@pytest.mark.parametrize(
    "options", ["key=s3cret", 3, ["s3cret"], {1: "s3cret"}], ids=["text", "number", "list", "keys"]
)
def test_options_that_are_no_dict_with_names_are_refused_and_not_shown(options: Any, tmp_path: Path) -> None:
    doors = [
        *opened(f"memory://{tmp_path}", options),
        lambda: FileSource(str(tmp_path / "*"), "json", storage_options=options),
        lambda: FileSink(str(tmp_path), "json", storage_options=options),
        lambda: DeltaSink(str(tmp_path), "a", storage_options=options),
    ]
    for use in doors:
        with pytest.raises(ConfigError, match="^storage_options=.*: pass a dict") as refused:
            use()
        assert "s3cret" not in shown(refused.value)


@given(PROTOCOLS, NAMES, SECRETS, NAMES)
def test_a_password_in_a_uri_is_refused_and_not_shown(protocol: str, user: str, secret: str, path: str) -> None:
    for use in opened(f"{protocol}://{user}:{secret}@{path}/{path}"):
        with pytest.raises(ConfigError) as refused:
            use()
        assert secret not in shown(refused.value)
        assert "storage_options" in str(refused.value)


@given(PROTOCOLS, NAMES, SECRETS, NAMES)
def test_a_query_in_a_uri_is_refused_and_not_shown(protocol: str, name: str, secret: str, path: str) -> None:
    for uri in (
        f"{protocol}://{path}/{path}?{name}={secret}",
        f"{protocol}://{path}?{secret}",
        f"{protocol}://?{secret}",
    ):
        for use in opened(uri):
            with pytest.raises(ConfigError) as refused:
                use()
            assert secret not in shown(refused.value)


@given(st.sampled_from(["ftp", "https", "hdfs", "simplecache::s3"]), NAMES, SECRETS)
def test_what_is_not_supported_is_refused_without_showing_the_uri(protocol: str, user: str, secret: str) -> None:
    with pytest.raises(UnsupportedFilesystem) as refused:
        open_folder(f"{protocol}://{user}:{secret}@host/path", {"password": secret})
    assert secret not in shown(refused.value)


@given(NAMES, SECRETS, SECRETS, NAMES)
def test_what_clients_say_of_uris_is_shown_without_secrets(user: str, password: str, query: str, path: str) -> None:
    text = f'Could not connect to "http://{user}:{password}@{path}/{path}?sig={query}" (again)'

    assert password not in redacted(text)
    assert query not in redacted(text)
    assert redacted(text).startswith('Could not connect to "http://…@')
    assert redacted(text).endswith('" (again)')


def test_a_query_is_no_secret_shown_where_a_client_names_the_host_apart() -> None:
    text = "HTTPSConnectionPool(host='auth.example.org'): Max retries exceeded with url: /info?token=s3cret (Caused by"

    assert "s3cret" not in redacted(text)
    assert redacted(text).endswith("with url: /info?… (Caused by")


@given(st.text(string.ascii_letters + "/-._", max_size=30))
def test_a_plain_path_is_shown_as_it_is(path: str) -> None:
    for uri in (f"s3://{path}", path, f"abfs://container@account.example.org/{path}", f"file:///{path}"):
        assert redacted(uri) == uri


@pytest.mark.parametrize("path", ["what?", "a:b@c", "data?x=1"])
def test_a_local_path_may_have_any_name(path: str, tmp_path: Any) -> None:
    folder = open_folder(f"{tmp_path}/{path}")
    folder.create("manifests/1", b"1")
    assert (tmp_path / path / "manifests" / "1").read_bytes() == b"1"


@pytest.mark.parametrize(
    ("protocol", "package", "extra"),
    [
        ("s3", "s3fs", "s3"),
        ("s3a", "s3fs", "s3"),
        ("gs", "gcsfs", "gcs"),
        ("gcs", "gcsfs", "gcs"),
        ("az", "adlfs", "azure"),
    ],
)
def test_a_missing_package_is_named_by_its_extra(protocol: str, package: str, extra: str) -> None:
    with (
        mock.patch.dict("fsspec.registry._registry", clear=True),
        mock.patch.dict("sys.modules", {package: None}),
        pytest.raises(FilesystemNotInstalled, match=rf"pip install 'keygroups\[{extra}\]'") as missing,
    ):
        open_folder(f"{protocol}://bucket/path", {"secret": "kept"})
    assert (missing.value.protocol, missing.value.extra) == (protocol, extra)
    assert "kept" not in shown(missing.value)


@given(SECRETS, SECRETS)
def test_no_secret_is_in_what_the_project_writes_or_shows(key: str, secret: str) -> None:
    """Every file of a store, its URIs and what it prints."""
    store = SnapshotStore("memory://secrets", "enrich", storage_options={"password": secret, "key": key})
    store.claim(parallelism=2, max_parallelism=16).write(parts({}))
    store.pin(1)
    store.collect_garbage(dry_run=False)
    pending = store.begin()
    text = "".join(map(repr, (store, store.latest(), pending, pending.folder, store.verify()))) + store.uri

    stored = b"".join(pending.folder.read(file.name) for file in pending.folder.files())
    for hidden in (key, secret):
        assert hidden not in text
        assert hidden.encode() not in stored
    pending.folder.filesystem.rm(pending.folder.root, recursive=True)


def test_a_storage_that_fails_is_named_without_secrets() -> None:
    error = StorageUnavailable("bucket/a", redacted("https://u:p@host/x?sig=1 is gone"))
    assert "u:p" not in shown(error)
    assert "sig" not in shown(error)
