"""Files on servers of FTP and SFTP, whose clients have one connection: threads that read take turns with it."""

from __future__ import annotations

import os
import socket
import threading
import warnings
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import paramiko
import pytest

with warnings.catch_warnings():  # it uses asyncore, which is in Python 3.11 for the last time
    warnings.simplefilter("ignore", DeprecationWarning)
    from pyftpdlib.authorizers import DummyAuthorizer
    from pyftpdlib.handlers import FTPHandler
    from pyftpdlib.servers import FTPServer

from async_op import Job, Step
from async_op.connectors import FileRefused, FileSource
from async_op.connectors.errors import ConnectorUnavailable
from tests.async_op.job.kit import Epochs, same

# fsspec's client of FTP leaves its socket to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")

USER, PASSWORD = "user", "s3cret"
FILES, ROWS = 6, 500
CONTENT = b"n\n" + b"".join(b"%d\n" % number for number in range(ROWS))

Options = dict[str, Any]


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("served")
    for number in range(FILES):
        (folder / f"{number}.csv").write_bytes(CONTENT)
    return folder


@pytest.fixture
def ftp(folder: Path) -> Iterator[Options]:
    users = DummyAuthorizer()
    users.add_user(USER, PASSWORD, str(folder))
    handler = type("Handler", (FTPHandler,), {"authorizer": users, "auth_failed_timeout": 0})
    server = FTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"timeout": 0.05, "handle_exit": False}, daemon=True)
    thread.start()
    yield {"host": "127.0.0.1", "port": server.address[1], "username": USER, "password": PASSWORD}
    server.close_all()
    thread.join()


class Door(paramiko.ServerInterface):
    def check_auth_password(self, username: str, password: str) -> int:
        is_known = (username, password) == (USER, PASSWORD)
        return paramiko.AUTH_SUCCESSFUL if is_known else paramiko.AUTH_FAILED

    def check_channel_request(self, kind: str, channel: int) -> int:
        return paramiko.OPEN_SUCCEEDED


class OpenFile(paramiko.SFTPHandle):
    def stat(self) -> Any:
        return paramiko.SFTPAttributes.from_stat(os.fstat(self.readfile.fileno()))


class Files(paramiko.SFTPServerInterface):
    """The files of the machine, to read."""

    def list_folder(self, path: str) -> Any:
        return [paramiko.SFTPAttributes.from_stat(entry.stat(), entry.name) for entry in os.scandir(path)]

    def stat(self, path: str) -> Any:
        try:
            return paramiko.SFTPAttributes.from_stat(Path(path).stat())
        except OSError as error:
            return paramiko.SFTPServer.convert_errno(error.errno)

    lstat = stat

    def open(self, path: str, flags: int, attr: Any) -> Any:
        handle = OpenFile(flags)
        handle.readfile = Path(path).open("rb")  # noqa: SIM115 - closed with the handle
        return handle


class SftpServer:
    """Answers on the loopback, each connection with threads of its own."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._key = paramiko.ECDSAKey.generate()
        self._transports: list[paramiko.Transport] = []
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()
        self.port = self._socket.getsockname()[1]

    def _accept(self) -> None:
        with suppress(OSError):  # it is closed
            while True:
                transport = paramiko.Transport(self._socket.accept()[0])
                transport.add_server_key(self._key)
                transport.set_subsystem_handler("sftp", paramiko.SFTPServer, Files)
                self._transports.append(transport)
                with suppress(paramiko.SSHException, EOFError):
                    transport.start_server(server=Door())

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join()
        for transport in self._transports:
            transport.close()
            transport.join()


@pytest.fixture
def sftp() -> Iterator[Options]:
    server = SftpServer()
    yield {"host": "127.0.0.1", "port": server.port, "username": USER, "password": PASSWORD}
    server.close()


@pytest.fixture(params=["ftp", "sftp"])
def served(request: pytest.FixtureRequest, folder: Path) -> tuple[str, Options]:
    """A glob, and the options of a client."""
    options = request.getfixturevalue(request.param) | {"skip_instance_cache": True}
    return f"{request.param}://127.0.0.1{'' if request.param == 'ftp' else folder}/*.csv", options


def job(glob: str, options: Options, snapshots: Path) -> Job:
    source = FileSource(glob, "csv", retry=None, storage_options=options)
    return Job(source, Step(same, name="same"), Epochs(), snapshots=snapshots, job_id="job")


async def test_files_are_read_in_turn(served: tuple[str, Options], tmp_path: Path) -> None:
    reading = job(*served, tmp_path)
    await reading.run()

    assert reading.progress().records == FILES * ROWS


async def test_a_wrong_password_is_refused(served: tuple[str, Options], tmp_path: Path) -> None:
    glob, options = served
    with pytest.raises(FileRefused, match="Authentication failed") as refused:
        await job(glob, options | {"password": "wr0ng"}, tmp_path).run()
    assert "wr0ng" not in str(refused.value)


@pytest.mark.parametrize("protocol", ["ftp", "sftp"])
async def test_a_server_that_is_away_is_unavailable(protocol: str, tmp_path: Path) -> None:
    options = {"port": 1, "username": USER, "password": PASSWORD, "skip_instance_cache": True}
    with pytest.raises(ConnectorUnavailable):
        await job(f"{protocol}://127.0.0.1/*.csv", options | {"host": "127.0.0.1"}, tmp_path).run()
