"""`python -m async_op.hosting.process`: the process of a host, or a fork server. `launch` starts both."""

from __future__ import annotations

import os
import pickle
import sys
from pathlib import Path
from typing import BinaryIO, NoReturn


def main() -> None:
    """Detach from the starting process, then run a host; standard output gets its address, or why it has none.

    With descriptors as arguments, run a fork server, which forks a process for each connection.
    """
    if os.fork():
        # The worker that started this may end at any time. The host is no child of it, but stays in its process group.
        os._exit(0)
    if sys.argv[1:]:
        _be_fork_server(*sys.argv[1:])
    with open(0, "rb", closefd=False) as told:
        search_path, instructions, descriptors = pickle.load(told)  # noqa: S301 - from the process that started this one
    answer = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever a function prints goes to the log
    _read_nothing()
    _live(search_path, instructions, descriptors, answer, "")


def _be_fork_server(
    listening: str, lock: str, owner: str, folder: str, name: str, start: str, *modules: str
) -> NoReturn:
    from async_op.hosting.process import fork_server
    from async_op.hosting.process.host_files import HostFiles

    fork_server.serve(int(listening), int(lock), int(owner), HostFiles(Path(folder), name, start), modules, _live)


def _live(search_path: list[str], instructions: bytes, descriptors: list[int], answer: BinaryIO, exits: str) -> None:
    sys.path[:] = search_path
    from async_op.hosting.process.fork_server import say

    try:
        pickle.loads(instructions).live(descriptors, answer, exits)  # noqa: S301 - from the process that started this
    except Exception as error:
        if not answer.closed:
            with answer:
                say(answer, error)
        raise


def _read_nothing() -> None:
    """Replace standard input: a connection that got its descriptor would never be closed, as uvloop keeps 0 to 2."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)


if __name__ == "__main__":
    main()
