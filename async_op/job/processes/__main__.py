"""`python -m async_op.job.processes`: a child as a fresh interpreter, where none can be forked; see `launch`."""

from __future__ import annotations

import os
import pickle
import sys

from async_op.job.processes.child_process import ChildInstructions
from async_op.job.processes.launch import SIZE


def main() -> None:
    """Hear on standard input what to do, and do it. The input ends with the parent."""
    parent = os.dup(0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    (size,) = SIZE.unpack(_exactly(parent, SIZE.size))
    told: ChildInstructions = pickle.loads(_exactly(parent, size))  # noqa: S301 - from the parent
    told.run(parent, int(sys.argv[1]))


def _exactly(descriptor: int, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = os.read(descriptor, size - len(data))
        if not part:
            os._exit(1)
        data += part
    return data


if __name__ == "__main__":
    main()
