"""How long an element has been in the operator, told from the numbers of elements alone."""

from __future__ import annotations

from collections import deque

RESOLUTION_SECONDS = 0.1
"""Marks that are nearer to each other become one: there may be one for each element of a busy operator."""


class Ages:
    """Remembers when numbers were given. A mark is made with each look, so an age is as exact as looks are frequent."""

    def __init__(self) -> None:
        self._marks = deque[tuple[int, float]]()

    def mark(self, following: int, now: float) -> None:
        """Note that all elements before a number have come by now."""
        if not self._marks:
            self._marks.append((following, now))
        elif self._marks[-1][0] < following:
            marked_at = self._marks[-1][1]
            if now - marked_at < RESOLUTION_SECONDS:
                self._marks[-1] = following, marked_at
            else:
                self._marks.append((following, now))

    def of(self, oldest: int | None, now: float) -> float | None:
        """Return the seconds since an element came, or a little more (`RESOLUTION_SECONDS`); None for no element.

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
        return now - self._marks[0][1] if self._marks else 0.0
