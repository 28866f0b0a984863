"""Pools of threads that keep no process alive."""

from __future__ import annotations

import gc
import threading
from concurrent.futures import CancelledError

import pytest

from snapshots.daemon_threads import DaemonPool


def test_results_and_errors_come_back_in_the_order_of_the_calls() -> None:
    with DaemonPool(3, "pool") as pool:
        assert list(pool.map(abs, range(-50, 0))) == list(range(50, 0, -1))
        with pytest.raises(ZeroDivisionError):
            pool.submit(divmod, 1, 0).result()


def test_no_more_threads_than_said_work_at_once_and_those_that_rest_are_used_again() -> None:
    gate, begun = threading.Event(), threading.Semaphore(0)

    def work() -> str:
        begun.release()
        gate.wait(60)
        return threading.current_thread().name

    with DaemonPool(2, "pool") as pool:
        first = pool.submit(str)
        first.result()
        futures = [pool.submit(work) for _ in range(4)]
        assert begun.acquire(timeout=60)
        assert begun.acquire(timeout=60)
        assert not begun.acquire(blocking=False)
        gate.set()
        assert {future.result() for future in futures} <= {"pool_0", "pool_1"}


def test_threads_end_with_a_shutdown_and_all_of_them_are_daemons() -> None:
    pool = DaemonPool(2, "ending")
    made = pool.submit(threading.current_thread).result()
    assert made.daemon
    pool.shutdown()
    assert not made.is_alive()
    with pytest.raises(RuntimeError, match="after shutdown"):
        pool.submit(str)


def test_a_shutdown_cancels_what_waits_and_is_not_held_up_by_what_hangs() -> None:
    gate, begun = threading.Event(), threading.Event()

    def hang() -> None:
        begun.set()
        gate.wait(60)

    pool = DaemonPool(1, "hanging", end_seconds=0.01)
    running, waiting = pool.submit(hang), pool.submit(str)
    begun.wait(60)
    pool.shutdown(wait=True, cancel_futures=True)
    with pytest.raises(CancelledError):
        waiting.result()
    gate.set()
    running.result(60)


def test_a_pool_that_is_dropped_leaves_no_thread_behind() -> None:
    pool = DaemonPool(1, "dropped")
    made = pool.submit(threading.current_thread).result()
    del pool
    gc.collect()
    made.join(60)
    assert not made.is_alive()
