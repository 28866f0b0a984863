"""How long an element has been in the operator, found from sequence numbers alone."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

RESOLUTION_SECONDS = 0.1
"""Marks that are closer together become one; otherwise a busy operator could keep a mark for each element."""

MARKS_MAX = 1000
"""More marks are thinned out; otherwise a call that hangs would keep the marks of all later elements."""

COARSENESS = 4 / MARKS_MAX
"""Marks that are closer together than this part of the oldest one's age become one: about half of them are left."""


@dataclass(slots=True)
class _Mark:
    """All elements below `following` had come by `until`; those above the mark before this one, since `since`."""

    following: int
    since: float
    until: float


class Ages:
    """Remembers when sequence numbers were given out; an element's age counts from the first mark after it came."""

    def __init__(self) -> None:
        self._marks = deque[_Mark]()

    def mark(self, following: int, now: float) -> None:
        """Note that all elements with a sequence number below `following` have come by now."""
        if not self._marks:
            self._marks.append(_Mark(following, now, now))
        elif (last := self._marks[-1]).following < following:
            if now - last.since < RESOLUTION_SECONDS:
                last.following, last.until = following, now
            else:
                self._marks.append(_Mark(following, now, now))
                if len(self._marks) > MARKS_MAX:
                    self._thin(COARSENESS * (now - self._marks[0].since))

    def of(self, oldest: int | None, now: float) -> float | None:
        """Return the seconds since an element came; None for no element.

        They are at most `RESOLUTION_SECONDS` too many, and once there were more than `MARKS_MAX` marks, at most
        `COARSENESS` times the age of the oldest one. Marks of older elements are forgotten.

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
        while self._marks and self._marks[0].following <= oldest:
            self._marks.popleft()
        if not self._marks:
            self.mark(oldest + 1, now)  # a timer's, which has no mark: its age counts from here
        return now - self._marks[0].since

    def _thin(self, resolution_seconds: float) -> None:
        marks, self._marks = self._marks, deque()
        for mark in marks:
            if self._marks and mark.until - (last := self._marks[-1]).since < resolution_seconds:
                last.following, last.until = mark.following, mark.until
            else:
                self._marks.append(mark)
