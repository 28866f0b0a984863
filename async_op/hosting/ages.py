"""How long an element has been in the operator, found from sequence numbers alone."""

from __future__ import annotations

from collections import deque

RESOLUTION_SECONDS = 0.1
"""Marks that are closer together become one; otherwise a busy operator could keep a mark for each element."""


class Ages:
    """Remembers when sequence numbers were given out; an element's age counts from the first mark after it came."""

    def __init__(self) -> None:
        self._marks = deque[tuple[int, float]]()

    def mark(self, following: int, now: float) -> None:
        """Note that all elements with a sequence number below `following` have come by now."""
        if not self._marks:
            self._marks.append((following, now))
        elif self._marks[-1][0] < following:
            marked_at = self._marks[-1][1]
            if now - marked_at < RESOLUTION_SECONDS:
                self._marks[-1] = following, marked_at
            else:
                self._marks.append((following, now))

    def of(self, oldest: int | None, now: float) -> float | None:
        """Return the seconds since an element came, at most `RESOLUTION_SECONDS` too many; None for no element.

        Marks of older elements are forgotten.

        Examples
        --------
        >>> ages = Ages()
        >>> ages.mark(10, 5.0)
        >>> ages.mark(20, 6.0)
        >>> ages.of(12, 8.0)
        2.0
        """
        if oldest is None:
            self._marks.clear()
            return None
        while self._marks and self._marks[0][0] <= oldest:
            self._marks.popleft()
        if not self._marks:
            self.mark(oldest + 1, now)  # a timer's, which nobody has marked: its age counts from here
        return now - self._marks[0][1]
