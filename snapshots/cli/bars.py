"""A bar chart of key groups as text."""

from __future__ import annotations

from snapshots.cli.output import Table
from snapshots.inspection import KeyGroupSizes

_LINES_MAX = 16
_BAR_WIDTH = 40
_EIGHTHS = " ▏▎▍▌▋▊▉█"


def bar_chart(sizes: KeyGroupSizes) -> Table:
    """Draw the bytes of each key group; if there are many, each bar stands for several neighbours."""
    count = len(sizes.bytes)
    step = -(-count // _LINES_MAX)
    runs = [(first, min(first + step, count)) for first in range(0, count, step)]
    found = [(int((sizes.rows + sizes.delta_rows)[a:b].sum()), int(sizes.bytes[a:b].sum())) for a, b in runs]
    largest = max((bytes_ for _, bytes_ in found), default=0)
    rows = tuple(
        (f"{first}" if end == first + 1 else f"{first}-{end - 1}", rows, bytes_, bar(bytes_, largest))
        for (first, end), (rows, bytes_) in zip(runs, found, strict=True)
    )
    title = f"bytes by key group: the largest has {sizes.skew:.1f} times the average"
    return Table(title, ("key groups", "rows", "bytes", ""), rows)


def bar(value: int, largest: int) -> str:
    """Draw a bar with a resolution of an eighth of a character.

    Examples
    --------
    >>> bar(1, 1), bar(1, 80), bar(0, 1)
    ('████████████████████████████████████████', '▌', '')
    """
    eighths = round(value * _BAR_WIDTH * 8 / largest) if largest else 0
    whole, rest = divmod(eighths, 8)
    return _EIGHTHS[8] * whole + (_EIGHTHS[rest] if rest else "")
