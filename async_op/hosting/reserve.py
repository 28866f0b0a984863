"""How many elements may wait for a call when a host asks for more rows."""

from __future__ import annotations


class Reserve:
    """Learns how many elements the operator takes in from a cut until the next rows come, and keeps half as many more.

    Between two micro-batches Spark commits, plans and starts tasks. An operator with an empty line would make fewer and
    fewer calls meanwhile. One thread may call it.

    Parameters
    ----------
    least : int
        The size at first, and the least that is learnt: the operator's capacity.
    elements_max, bytes_max : int
        Limits of the size, in elements and in bytes of the rows as they were fed.

    Examples
    --------
    >>> reserve = Reserve(100, 10_000, 2**24)
    >>> reserve.cut(waiting=500)
    >>> reserve.fed(waiting=300, rows=1000, rows_bytes=20_000)
    >>> reserve.size
    300
    """

    def __init__(self, least: int, elements_max: int, bytes_max: int) -> None:
        self._least = least
        self._elements_max = elements_max
        self._bytes_max = bytes_max
        self._learnt = 0
        self._waiting_at_cut: int | None = None
        self._row_bytes = 0.0

    @property
    def size(self) -> int:
        """The number of elements that may wait."""
        size = min(max(self._learnt, self._least), self._elements_max)
        return min(size, int(self._bytes_max / self._row_bytes)) if self._row_bytes else size

    def cut(self, waiting: int) -> None:
        """Note that a cut was taken while so many elements waited."""
        self._waiting_at_cut = waiting

    def fed(self, waiting: int, rows: int, rows_bytes: int) -> None:
        """Note that rows came while so many elements still waited."""
        if not rows:
            return
        self._row_bytes = rows_bytes / rows
        if self._waiting_at_cut is not None:
            taken = max(0, self._waiting_at_cut - waiting)
            # If none was left, more might have been taken in.
            needed = 2 * taken if waiting == 0 else taken + taken // 2
            self._learnt = max(needed, self._learnt * 3 // 4)
            self._waiting_at_cut = None
