"""What is held against every door."""

from __future__ import annotations

from typing import Any

from keygroups import KeyGroupsError
from tests.doors.doors import COLUMN, Door, Refusal


def check(door: Door, type_: Any, sent: list[Any]) -> list[Any]:
    """Send values through a door, and return what has become of them, which is nothing but what it may be."""
    found = door.through(type_, sent)
    for number, (value, back) in enumerate(zip(sent, found, strict=True)):
        if isinstance(back, Refusal):
            assert isinstance(back.error, KeyGroupsError)
            assert (back.column or "").startswith(COLUMN), back.error
            assert back.id == f"row-{number}" or type_ in door.lacks, back.error
        else:
            assert door.same(type_, value, back), f"{value!r} came back as {back!r}"
    return found
