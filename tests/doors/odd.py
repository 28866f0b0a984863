"""Odd things to pass, and what must come of it."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import pyarrow as pa

from keygroups.errors import KeyGroupsError


class Odd:
    """A class that the library does not know."""


ODD: list[Any] = [
    *(None, True, False, 0, -1, 5, 2.5, math.nan, math.inf, 10**30, "", "x", "../x", "\ud800", b"x"),
    *([], [1], ["x"], [None], (), (1, 2), {}, {"a": 1}, {1: "a"}, {1}, range(3), timedelta(seconds=1)),
    *(datetime(2020, 1, 1), Decimal("1.5"), np.int64(3), np.float64(1.5), np.timedelta64(5, "s"), pa.int64()),
    *(Odd(), Odd, len, lambda: 1, lambda one: one, lambda one, other: one, Path("x"), pa.table({"a": [1]})),
]


_NAMED_IN_PLACE_OF = {
    "step": ["function"],
    "steps": ["function"],
    "keys": ["null key", "keys of type"],
    "name": ["state="],
    "old": ["state="],
    "rows": ["of key"],
    "function": ["rows="],
    "key_by": ["to be its key", "null key", "keys of type"],
    "seconds": ["s after the start"],
    "max_parallelism": ["max parallelism"],
    "wait_strategies": ["setting of a wait strategy"],
    "stream": ["output_schema", "capacity"],
}
"""What an error names if not the argument itself."""


def some_odd(seed: str, *, is_quick: bool) -> list[Any]:
    """Return all odd things, or in a quick run an eighth of them, chosen by a text."""
    return ODD[crc32(seed.encode()) % 8 :: 8] if is_quick else ODD


def check_odd(door: Callable[..., Any], given: dict[str, Any], name: str, chosen: list[Any] = ODD) -> None:
    """Pass odd things for an argument: it works, or it is an error of this project that names the argument."""
    names = [name, *_NAMED_IN_PLACE_OF.get(name, ())]
    raised: dict[str, Exception] = {}
    for odd in chosen:
        try:
            door(**given | {name: odd})
        except KeyGroupsError as error:
            assert any(one in str(error) for one in names)
        except Exception as error:  # noqa: BLE001 - shown all together
            raised[repr(odd)] = error
    assert raised == {}, raised
