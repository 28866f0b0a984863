"""Bar charts as text: of key groups, and of one number over time."""

from __future__ import annotations

from collections.abc import Sequence

from snapshots.cli.output import Table
from snapshots.inspection import KeyGroupSizes

_LINES_MAX = 16
_BAR_WIDTH = 28
_EIGHTHS = " ▏▎▍▌▋▊▉█"
_HEIGHTS = "▁▂▃▄▅▆▇█"


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


def bar(value: int, largest: int, width: int = _BAR_WIDTH) -> str:
    """Draw a bar of at most so many characters, with a resolution of an eighth of one.

    Examples
    --------
    >>> bar(1, 1), bar(1, 80), bar(0, 1)
    ('████████████████████████████', '▍', '')
    """
    eighths = round(value * width * 8 / largest) if largest else 0
    whole, rest = divmod(eighths, 8)
    return _EIGHTHS[8] * whole + (_EIGHTHS[rest] if rest else "")


def sparkline(values: Sequence[int | None]) -> str:
    """Draw a column for each value, one character wide; a dot stands for a value that there is not.

    Examples
    --------
    >>> sparkline([0, 1, 50, None, 100])
    '▁▂▅·█'
    """
    largest = max((value for value in values if value is not None), default=0)
    steps = len(_HEIGHTS) - 1
    heights = (None if value is None else -(-value * steps // largest) if largest else 0 for value in values)
    return "".join("·" if height is None else _HEIGHTS[height] for height in heights)
