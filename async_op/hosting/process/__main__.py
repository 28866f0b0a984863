"""`python -m async_op.hosting.process`: the process of a host. `launch` starts it."""

from __future__ import annotations

import os
import pickle
import sys
from typing import BinaryIO


def main() -> None:
    """Detach from the starting process, then run a host; standard output gets its address, or why it has none."""
    if os.fork():
        # The worker that started this may end at any time. The host is no child of it, but stays in its process group.
        os._exit(0)
    with open(0, "rb", closefd=False) as told:
        search_path, instructions = pickle.load(told)  # noqa: S301 - from the process that started this one
    answer = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever a function prints goes to the log
    _read_nothing()
    sys.path[:] = search_path
    try:
        from async_op.hosting.process.resident import live

        live(pickle.loads(instructions), lambda address: _say(answer, address))  # noqa: S301 - as above
    except Exception as error:
        if not answer.closed:
            _say(answer, error)
        raise


def _read_nothing() -> None:
    """Replace standard input: a connection that got its descriptor would never be closed, as uvloop keeps 0 to 2."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)


def _say(answer: BinaryIO, what: object) -> None:
    with answer:
        answer.write(pickle.dumps(what))


if __name__ == "__main__":
    main()
