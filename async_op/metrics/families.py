"""What is measured, in the words of Prometheus: families of samples."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

Kind = Literal["counter", "gauge", "histogram"]

Bucket = tuple[float, int]
"""An upper bound in seconds, and how many values are not above it."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One value.

    Attributes
    ----------
    labels : mapping of str to str
        What tells it from others of its family; never a key of an element.
    value : float
        Of a histogram, the sum.
    buckets : tuple of (float, int)
        Of a histogram: cumulative, ascending, the last bound infinite.
    """

    labels: Mapping[str, str]
    value: float
    buckets: tuple[Bucket, ...] = ()


@dataclass(frozen=True, slots=True)
class Family:
    """The samples of one name.

    Attributes
    ----------
    name : str
        With the unit, without the suffix "_total" of a counter.
    kind : {"counter", "gauge", "histogram"}
        Whether it only grows, goes up and down, or counts values by size.
    help : str
        What it is.
    samples : tuple of Sample
        All with the same label names.
    """

    name: str
    kind: Kind
    help: str
    samples: tuple[Sample, ...]

    @property
    def label_names(self) -> tuple[str, ...]:
        """The names of the labels."""
        return tuple(self.samples[0].labels)


def cumulative(buckets: Iterable[tuple[float, int]], bounds: Iterable[float]) -> tuple[Bucket, ...]:
    """Return how many values are not above each bound, from the counts of buckets that have some.

    Examples
    --------
    >>> cumulative([(1.0, 5), (4.0, 2)], [1.0, 2.0, 4.0])
    ((1.0, 5), (2.0, 5), (4.0, 7), (inf, 7))
    """
    left = list(buckets)
    seen = 0
    found = []
    for bound in (*bounds, float("inf")):
        while left and left[0][0] <= bound:
            seen += left.pop(0)[1]
        found.append((bound, seen))
    return tuple(found)
