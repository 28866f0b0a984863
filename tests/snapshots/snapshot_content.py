"""Content that fills every key group, for tests of whole snapshots."""

from __future__ import annotations

from typing import Any

from tests.snapshot_kit import words

CONTENT: dict[str, dict[Any, object]] = {
    "count": {key: number for number, key in enumerate(words(50))},
    "profile": {key: {"name": key, "seen": (number, None)} for number, key in enumerate(words(30))},
}


def position(number: int) -> dict[str, Any]:
    return {"batch": number}
