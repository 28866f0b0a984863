"""As much of Google Cloud Storage's JSON API as gcsfs needs for snapshots, on the loopback. Written from its reference.

It stands in for the service, which cannot be reached from a test: what it shows is that our calls and gcsfs's requests
say what is meant, not that the service does.
"""

from __future__ import annotations

import base64
import datetime as dt
import hashlib
import json
import re
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock
from urllib.parse import parse_qs, unquote

from tests.loopback import ObjectStore, serving

Answer = tuple[int, bytes]


class GcsServer(ObjectStore):
    """The server."""

    def __init__(self) -> None:
        super().__init__()
        self.objects: dict[tuple[str, str], tuple[bytes, str]] = {}
        self.requests: Counter[str] = Counter()

    @property
    def options(self) -> dict[str, Any]:
        return {"token": "anon", "endpoint_url": self.url}

    def new_root(self) -> str:
        self.reset()
        return f"gs://bucket-{uuid.uuid4().hex}/operators"

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        # The raw path, in which the slashes of an object's name are not those of the path.
        path = environ["REQUEST_URI"].partition("?")[0]
        query = {name: values[0] for name, values in parse_qs(environ["QUERY_STRING"]).items()}
        with self.lock:
            status, answer = _refusal(*self.refuses) if self.refuses else self.answer(environ, path, query, body)
        start_response(f"{status} -", [("Content-Type", "application/json"), ("Content-Length", str(len(answer)))])
        return [answer]

    def answer(self, environ: dict[str, Any], path: str, query: dict[str, str], body: bytes) -> Answer:
        method = environ["REQUEST_METHOD"]
        if path.startswith("/batch/"):
            self.requests["batch"] += 1
            return self.batch(body)
        match = re.fullmatch(r"(?:/(upload|download))?/storage/v1/b/([^/]+)(?:/o(?:/(.+))?)?", path)
        assert match, path
        kind, bucket, name = match[1], match[2], unquote(match[3] or "")
        self.requests[f"{kind or 'json'} {method}"] += 1
        if kind == "upload":
            return self.upload(bucket, query, body)
        if method == "DELETE":
            return (204, b"") if self.objects.pop((bucket, name), None) else (404, b"{}")
        if not name:
            return self.list(bucket, query)
        if (bucket, name) not in self.objects:
            return 404, b"{}"
        if query.get("alt") == "media":
            return self.media(self.objects[bucket, name][0], environ.get("HTTP_RANGE"))
        return 200, json.dumps(self.describe(bucket, name)).encode()

    def upload(self, bucket: str, query: dict[str, str], body: bytes) -> Answer:
        boundary = body[: body.index(b"\r\n" if b"\r\n" in body[:200] else b"\n")].strip()
        _, _, rest = body.partition(b"{")
        described, _, rest = rest.partition(boundary)
        name = json.loads(b"{" + described)["name"]
        content = rest[re.search(rb"\r?\n\r?\n", rest).end() : rest.rindex(boundary)]  # type: ignore[union-attr]
        content = re.sub(rb"\r?\n\Z", b"", content)
        is_conditional = query.get("ifGenerationMatch") == "0" and not self.ignores_condition
        if is_conditional and (bucket, name) in self.objects:
            return _refusal(412, "conditionNotMet")
        self.objects[bucket, name] = (content, f"{dt.datetime.now(dt.UTC).replace(tzinfo=None).isoformat()}Z")
        return 200, json.dumps(self.describe(bucket, name)).encode()

    def list(self, bucket: str, query: dict[str, str]) -> Answer:
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter")
        items, prefixes = [], set()
        for container, name in sorted(self.objects):
            if container == bucket and name.startswith(prefix):
                rest = name[len(prefix) :]
                if delimiter and delimiter in rest:
                    prefixes.add(prefix + rest.partition(delimiter)[0] + delimiter)
                else:
                    items.append(self.describe(bucket, name))
        return 200, json.dumps({"items": items, "prefixes": sorted(prefixes)}).encode()

    def media(self, data: bytes, wanted: str | None) -> Answer:
        if wanted is None:
            return 200, data
        first, last = re.fullmatch(r"bytes=(\d+)-(\d*)", wanted).groups()  # type: ignore[union-attr]
        if int(first) >= len(data):
            return 416, b"Requested range not satisfiable"
        return 206, data[int(first) : int(last) + 1 if last else None]

    def batch(self, body: bytes) -> Answer:
        parts = []
        for bucket, name in re.findall(rb"DELETE /storage/v1/b/([^/]+)/o/([^ ?]+)", body):
            gone = self.objects.pop((bucket.decode(), unquote(name.decode())), None)
            parts.append(f"HTTP/1.1 {204 if gone else 404} -\r\n\r\n")
        return 200, "\r\n".join(parts).encode()

    def describe(self, bucket: str, name: str) -> dict[str, Any]:
        data, updated = self.objects[bucket, name]
        digest = base64.b64encode(hashlib.md5(data, usedforsecurity=False).digest()).decode()
        return {
            "kind": "storage#object",
            "bucket": bucket,
            "name": name,
            "size": str(len(data)),
            "updated": updated,
            "md5Hash": digest,
            "generation": "1",
        }


def _refusal(status: int, message: str) -> Answer:
    return status, json.dumps({"error": {"code": status, "message": message}}).encode()


@contextmanager
def gcs_server() -> Iterator[GcsServer]:
    # Otherwise gcsfs asks for the kind of the bucket by gRPC, which no stand-in answers.
    with mock.patch.dict("os.environ", GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT="false"), serving(GcsServer()) as server:
        yield server
