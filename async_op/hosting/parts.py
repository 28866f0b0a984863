"""H4: hosts write parts, and the driver makes one manifest of parts that belong together."""

from __future__ import annotations

from collections.abc import Iterable

from async_op.hosting.errors import IncompleteEpoch
from async_op.hosting.messages import Part


def one_of_each(parts: Iterable[Part], job: str, parallelism: int) -> list[Part]:
    """Pick one part for each subtask, all of one job, which is one attempt at an epoch.

    Parts of an earlier job start from the same manifest and may look complete, but were made of other rows.

    Raises
    ------
    IncompleteEpoch
        A subtask has no part, because its host was lost; the epoch must be run again.
    """
    picked: dict[int, Part] = {}
    for part in parts:
        if part.job == job:
            picked.setdefault(part.subtask_index, part)
    missing = sorted(set(range(parallelism)) - picked.keys())
    if missing:
        raise IncompleteEpoch(job, list(missing))
    return [picked[index] for index in range(parallelism)]
