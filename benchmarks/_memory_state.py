"""The memory of a million values, in a plain dict and in the backend in memory, each in a process of its own."""

from __future__ import annotations

import gc
import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import numpy as np

from benchmarks._disk_state import MAX_PARALLELISM, PAYLOAD, VALUE_BYTES, Anonymous
from keygroups import KeyGroupRange, key_groups_of
from keygroups.state import MemoryBackend, Transaction

KEYS = 1_000_000


def in_dict() -> float:
    """Return the MB of a plain dict."""
    memory = Anonymous()
    held = {key: os.urandom(VALUE_BYTES) for key in range(KEYS)}
    gc.collect()
    memory.look()
    assert len(held) == KEYS
    return memory.most_mb - memory.before_mb


def in_state() -> float:
    """Return the MB of the same in a backend."""
    groups = key_groups_of(np.arange(KEYS), MAX_PARALLELISM).tolist()
    backend = MemoryBackend([PAYLOAD], KeyGroupRange(0, MAX_PARALLELISM - 1))
    memory = Anonymous()
    for key, key_group in enumerate(groups):
        transaction = Transaction(backend, key, key_group)
        transaction.state(PAYLOAD).update(os.urandom(VALUE_BYTES))
        transaction.commit()
    gc.collect()
    memory.look()
    return memory.most_mb - memory.before_mb


def measure() -> dict[str, Any]:
    """Compare the two."""
    found = []
    for case in (in_dict, in_state):
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
            found.append(pool.submit(case).result())
    floor, used = found
    return {
        "case": f"memory of {KEYS:,} values of {VALUE_BYTES} bytes ÷ a plain dict's (MB)",
        "floor_mb": round(floor),
        "mb": round(used),
        "result": round(used / floor, 3),
        "at_most": 1.3,
    }
