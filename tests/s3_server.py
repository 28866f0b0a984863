"""A server that speaks S3 on the loopback, by moto; it counts requests, and answers wrongly if told to."""

from __future__ import annotations

import re
import uuid
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any

import fsspec
from moto.server import DomainDispatcherApplication, create_backend_app

from tests.loopback import ObjectStore, serving

KEY, SECRET = "AKIAEXAMPLE", "kept/to+ourselves"

Start = Callable[..., Any]


class S3Server(ObjectStore):
    """The server; `requests` counts what came, by method and kind.

    Attributes
    ----------
    answers : list of (int, str, bool)
        Status, code and whether the request takes place all the same, for the next conditional writes.
    busy : int
        So many of the next requests are answered with 503, "SlowDown".
    """

    def __init__(self) -> None:
        super().__init__()
        self.app = DomainDispatcherApplication(create_backend_app)
        self.requests: Counter[str] = Counter()
        self.keys_put: list[str] = []
        self.answers: list[tuple[int, str, bool]] = []
        self.busy = 0

    @property
    def options(self) -> dict[str, Any]:
        return {"key": KEY, "secret": SECRET, "endpoint_url": self.url, "client_kwargs": {"region_name": "us-east-1"}}

    def new_root(self) -> str:
        bucket = f"bucket-{uuid.uuid4().hex}"
        fsspec.filesystem("s3", **self.options).call_s3("create_bucket", Bucket=bucket)
        self.reset()
        return f"s3://{bucket}/operators"

    def reset(self) -> None:
        super().reset()
        self.requests.clear()
        self.keys_put.clear()
        self.answers.clear()
        self.busy = 0

    def __call__(self, environ: dict[str, Any], start_response: Start) -> Iterable[bytes]:
        is_conditional = "HTTP_IF_NONE_MATCH" in environ
        kind = "LIST" if "list-type" in environ["QUERY_STRING"] else environ["REQUEST_METHOD"]
        self.requests[kind] += 1
        if kind == "PUT":
            self.keys_put.append(environ["PATH_INFO"])
        if self.busy or self.refuses:
            environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
            status, code = self.refuses or (503, "SlowDown")
            self.busy = max(0, self.busy - 1)
            refused = _refuse(status, code, start_response)
            return [] if kind == "HEAD" else refused
        if is_conditional and self.ignores_condition:
            del environ["HTTP_IF_NONE_MATCH"]
        if is_conditional and self.answers:
            status, code, takes_place = self.answers.pop(0)
            body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
            if takes_place:
                environ["wsgi.input"] = _Body(body)
                with self.lock:
                    b"".join(self.app(environ, lambda *_: None))
            return _refuse(status, code, start_response)
        with self.lock:
            return list(self.app(environ, start_response))


class _Body:
    def __init__(self, data: bytes) -> None:
        self.data = data

    def read(self, size: int = -1) -> bytes:
        part, self.data = (self.data, b"") if size < 0 else (self.data[:size], self.data[size:])
        return part


def _refuse(status: int, code: str, start_response: Start) -> list[bytes]:
    body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>no</Message></Error>".encode()
    start_response(f"{status} {code}", [("Content-Type", "application/xml"), ("Content-Length", str(len(body)))])
    return [body]


def s3_server() -> AbstractContextManager[S3Server]:
    return serving(S3Server())


def secrets_in(text: str) -> list[str]:
    return [secret for secret in (KEY, SECRET) if re.search(re.escape(secret), text)]
