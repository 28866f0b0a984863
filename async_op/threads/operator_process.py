"""A process that only runs operators: it logs as the process that started it, and ends whatever functions have left.

Hosts, children of jobs and the worker of Spark Connect are such processes. Users cannot set up logging in them, because
what stands under ``if __name__ == "__main__":`` does not run there.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import NoReturn

_TIDY_SECONDS = 5.0
"""How long processes may take to finish what they run, and log handlers and streams to write what they have."""


def log_levels() -> dict[str, int]:
    """Return the levels that this process has set for its loggers, by their names; the root's name is ""."""
    loggers = [one for one in list(logging.root.manager.loggerDict.values()) if isinstance(one, logging.Logger)]
    return {"": logging.root.level, **{one.name: one.level for one in loggers if one.level != logging.NOTSET}}


def set_up_logging(levels: Mapping[str, int]) -> None:
    """Log with the levels of another process; to standard error, unless the user's modules have set up something."""
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    for name, level in levels.items():
        logging.getLogger(name or None).setLevel(level)


def end_process(status: int) -> NoReturn:
    """End this process within a few seconds. Any thread may call it.

    Python's own end waits for the threads that a function has left behind, so a call that hangs would keep the process
    alive. What else happens then happens here, too: executors and processes of `multiprocessing` end, and log records
    and streams are written. Without that, the processes of a `ProcessPoolExecutor` would wait for work for ever.

    Parameters
    ----------
    status : int
        The exit status. Unless it is 0, executors and processes may not finish what they run.
    """
    with suppress(RuntimeError):  # there are too many threads
        tidying = threading.Thread(target=_tidy, args=(status == 0,), name="keygroups end", daemon=True)
        tidying.start()
        tidying.join(_TIDY_SECONDS)
    with suppress(Exception):  # another thread may be starting or ending processes
        _terminate_children()
    os._exit(status)


def _tidy(is_orderly: bool) -> None:
    with suppress(Exception):  # a handler of the user's
        logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):  # a function may have put anything in their place
            stream.flush()
    if is_orderly:  # last, because it waits for what they run
        _end_children()


def _end_children() -> None:
    """Do what Python does at its end, but only for libraries that this process has loaded."""
    if (futures := sys.modules.get("concurrent.futures.process")) is not None:
        futures._python_exit()  # an executor has no public way to be ended by others than its owner
    if (util := sys.modules.get("multiprocessing.util")) is not None:
        util._exit_function()  # as for processes of `multiprocessing`, which end by `os._exit`, too


def _terminate_children() -> None:
    if (made := sys.modules.get("multiprocessing")) is not None:
        for process in made.active_children():
            with suppress(OSError):
                process.terminate()
