"""Starts a query again when it has failed."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from async_op.epochs.restarts import RestartPolicy, Restarts
from keygroups.arguments import check_callable, check_instance, not_awaitable

_LOOK_SECONDS = 0.25
"""How often a delay looks whether the query was stopped."""


class Query(Protocol):
    """A query of a pipeline, of Spark, or of Spark Connect."""

    def awaitTermination(self) -> object:  # noqa: N802 - StreamingQuery's name
        """Wait for its end, and raise what it has failed with."""
        ...


def run_with_restarts(
    start: Callable[[], Query | None], restart: RestartPolicy, *, sleep: Callable[[float], object] = time.sleep
) -> None:
    """Start a query and wait for its end; start it again after a failure, as long as the policy allows.

    Each start continues from the newest snapshot. The function returns when the query has ended without a failure, for
    instance because another thread has called its `stop`. After a `stop`, a failure is raised, and a delay ends.

    Parameters
    ----------
    start : callable
        Starts the query and returns it, such as ``lambda: pipeline.start(df, sink, checkpoint_location=folder)``. What
        it raises is a failure of the query. It may also run to the end itself and return None, as
        ``lambda: pipeline.run(df, sink, run_id="history")`` does.
    restart : RestartPolicy
        How often to restart, and after which delays.
    sleep : callable
        Waits for a number of seconds; a delay is made of many short ones.

    Raises
    ------
    ConfigError
        An argument is invalid.
    Exception
        The failure that no restart follows: a permanent one, or the one after the last restart.
    """
    check_callable("start", start, 0, reason="it starts the query and returns it, or runs to the end")
    check_instance("restart", restart, RestartPolicy, reason="pass an object of the class RestartPolicy")
    restarts = Restarts(restart, "the query")
    while True:
        restarts.began(time.monotonic())
        query = None
        try:
            query = not_awaitable("start", start())
            if query is not None:
                query.awaitTermination()
        except Exception as error:
            delay = None if _is_stopped(query) else restarts.delay_after(error, time.monotonic())
            if delay is None:
                raise
            _wait(delay, query, sleep)
            if _is_stopped(query):
                raise
        else:
            return


def _wait(seconds: float, query: Query | None, sleep: Callable[[float], object]) -> None:
    """Wait before a restart, or until the query is stopped: it may be a minute."""
    while seconds > 0 and not _is_stopped(query):
        sleep(min(seconds, _LOOK_SECONDS))
        seconds -= _LOOK_SECONDS


def _is_stopped(query: Query | None) -> bool:
    """Tell whether `stop` of a query was called; Spark's own queries do not know."""
    return getattr(query, "is_stopped", False)
