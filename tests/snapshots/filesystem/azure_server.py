"""As much of Azure Blob Storage's REST API as adlfs needs for snapshots, on the loopback. Written from its reference.

It stands in for the service, which cannot be reached from a test: what it shows is that our calls and adlfs's requests
say what is meant, not that the service does.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from email.utils import formatdate
from http import HTTPStatus
from typing import Any, NamedTuple
from urllib.parse import parse_qs
from xml.sax.saxutils import escape

from tests.loopback import ObjectStore, serving

ACCOUNT, KEY = "account", "a2VwdC90bytvdXJzZWx2ZXM="


class Answer(NamedTuple):
    status: int
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()


class AzureServer(ObjectStore):
    """The server."""

    def __init__(self) -> None:
        super().__init__()
        self.blobs: dict[str, tuple[bytes, float]] = {}
        self.blocks: dict[str, dict[str, bytes]] = {}
        self.clock = 0

    @property
    def options(self) -> dict[str, Any]:
        account = f"AccountName={ACCOUNT};AccountKey={KEY};BlobEndpoint={self.url}/{ACCOUNT}"
        return {"connection_string": f"DefaultEndpointsProtocol=http;{account};"}

    def new_root(self) -> str:
        self.reset()
        return f"abfs://container-{uuid.uuid4().hex}/operators"

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        query = {name: values[0] for name, values in parse_qs(environ["QUERY_STRING"]).items()}
        path = environ["PATH_INFO"].removeprefix(f"/{ACCOUNT}/")
        with self.lock:
            answer = _refusal(*self.refuses) if self.refuses else self.answer(environ, path, query, body)
        headers = [("x-ms-version", "2021-12-02"), ("Content-Length", str(len(answer.body))), *answer.headers]
        start_response(f"{answer.status} -", headers)
        return [] if environ["REQUEST_METHOD"] == "HEAD" else [answer.body]

    def answer(self, environ: dict[str, Any], path: str, query: dict[str, str], body: bytes) -> Answer:
        method = environ["REQUEST_METHOD"]
        if query.get("comp") == "list":
            return self.list(path, query)
        if method == "PUT":
            return self.put(path, query, body, is_conditional=environ.get("HTTP_IF_NONE_MATCH") == "*")
        if path not in self.blobs:
            return _refusal(404, "BlobNotFound")
        if method == "DELETE":
            del self.blobs[path]
            return Answer(202)
        data, modified = self.blobs[path]
        described = (*_times(modified), ("x-ms-blob-type", "BlockBlob"), ("x-ms-meta-is_directory", "false"))
        return _range_of(data, environ, described)

    def put(self, path: str, query: dict[str, str], body: bytes, *, is_conditional: bool) -> Answer:
        if query.get("comp") == "block":
            self.blocks.setdefault(path, {})[query["blockid"]] = body
            return Answer(201)
        if is_conditional and not self.ignores_condition and path in self.blobs:
            return _refusal(409, "BlobAlreadyExists")
        if query.get("comp") == "blocklist":
            blocks = self.blocks.pop(path)
            body = b"".join(blocks[name] for name in re.findall(r"<Latest>(.+?)</Latest>", body.decode()))
        self.clock += 1
        self.blobs[path] = (body, 1.7e9 + self.clock)
        return Answer(201, headers=_times(self.blobs[path][1]))

    def list(self, container: str, query: dict[str, str]) -> Answer:
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter")
        found, folders = [], set()
        for path, (data, modified) in sorted(self.blobs.items()):
            holder, _, name = path.partition("/")
            if holder == container and name.startswith(prefix):
                rest = name[len(prefix) :]
                if delimiter and delimiter in rest:
                    folders.add(prefix + rest.partition(delimiter)[0] + delimiter)
                else:
                    found.append(_listed(name, data, modified))
        shown = "".join(f"<BlobPrefix><Name>{escape(folder)}</Name></BlobPrefix>" for folder in sorted(folders))
        blobs = f"<Blobs>{''.join(found)}{shown}</Blobs><NextMarker/>"
        text = f'<EnumerationResults ContainerName="{container}">{blobs}</EnumerationResults>'
        return Answer(200, text.encode(), (("Content-Type", "application/xml"),))


def _listed(name: str, data: bytes, modified: float) -> str:
    times = "".join(f"<{name}>{value}</{name}>" for name, value in _times(modified))
    properties = f"{times}<Content-Length>{len(data)}</Content-Length><BlobType>BlockBlob</BlobType>"
    return f"<Blob><Name>{escape(name)}</Name><Properties>{properties}</Properties></Blob>"


def _times(modified: float) -> tuple[tuple[str, str], ...]:
    return (("Last-Modified", formatdate(modified, usegmt=True)), ("Etag", f'"{modified:.0f}"'))


def _range_of(data: bytes, environ: dict[str, Any], described: tuple[tuple[str, str], ...]) -> Answer:
    wanted = environ.get("HTTP_X_MS_RANGE") or environ.get("HTTP_RANGE")
    if wanted is None:
        return Answer(200, data, described)
    first, last = re.fullmatch(r"bytes=(\d+)-(\d*)", wanted).groups()  # type: ignore[union-attr]
    if int(first) >= len(data):
        return _refusal(416, "InvalidRange")
    part = data[int(first) : int(last) + 1 if last else None]
    place = f"bytes {first}-{int(first) + len(part) - 1}/{len(data)}"
    return Answer(206, part, (*described, ("Content-Range", place)))


def _refusal(status: int, code: str) -> Answer:
    text = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{HTTPStatus(status).phrase}</Message></Error>"
    return Answer(status, text.encode(), (("Content-Type", "application/xml"), ("x-ms-error-code", code)))


def azure_server() -> AbstractContextManager[AzureServer]:
    return serving(AzureServer())
