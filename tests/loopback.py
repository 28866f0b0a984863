"""A WSGI application served on the loopback by threads, for the servers that tests write themselves."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

from werkzeug.serving import WSGIRequestHandler, make_server


class Application(Protocol):
    """What answers the requests; told its URL before the first."""

    url: str

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]: ...


class ObjectStore:
    """A server of an object store, which answers wrongly if told to.

    Attributes
    ----------
    ignores_condition : bool
        Conditional writes always succeed, as with stores that do not know them.
    refuses : (int, str) or None
        Status and code with which each request is answered.
    """

    url: str

    def __init__(self) -> None:
        self.ignores_condition = False
        self.refuses: tuple[int, str] | None = None
        # A service decides between two conditional writes; threads would check first and write afterwards.
        self.lock = threading.Lock()

    @property
    def options(self) -> dict[str, Any]:
        """The storage options with which clients find the server."""
        raise NotImplementedError

    def new_root(self) -> str:
        """Return the URI of a new folder, in a bucket of its own."""
        raise NotImplementedError

    def reset(self) -> None:
        """Answer rightly again."""
        self.ignores_condition, self.refuses = False, None


A = TypeVar("A", bound=Application)


class _Quiet(WSGIRequestHandler):
    protocol_version = "HTTP/1.1"

    def log(self, type: str, message: str, *args: Any) -> None:
        pass


@contextmanager
def serving(application: A) -> Iterator[A]:
    """Serve an application at a free port for as long as the block runs."""
    server = make_server("127.0.0.1", 0, application, threaded=True, request_handler=_Quiet)
    application.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, name=type(application).__name__, daemon=True)
    thread.start()
    try:
        yield application
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
