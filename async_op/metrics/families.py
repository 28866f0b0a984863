"""Metrics in Prometheus's terms: families of samples."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

Kind = Literal["counter", "gauge", "histogram"]

Bucket = tuple[float, int]
"""An upper bound in seconds, and the number of values up to it."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One value of a metric.

    Attributes
    ----------
    labels : mapping of str to str
        The labels that distinguish it within its family; never the key of an element.
    value : float
        The value; for a histogram, the sum.
    buckets : tuple of (float, int)
        The buckets of a histogram: cumulative and ascending; the last bound is infinite.
    """

    labels: Mapping[str, str]
    value: float
    buckets: tuple[Bucket, ...] = ()


@dataclass(frozen=True, slots=True)
class Family:
    """All samples of one metric.

    Attributes
    ----------
    name : str
        The name with its unit, but without a counter's suffix "_total".
    kind : {"counter", "gauge", "histogram"}
        A value that only grows, a value that goes up and down, or counts of values by size.
    help : str
        What the metric means.
    samples : tuple of Sample
        The samples; all have the same label names.
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
    """Return the number of values up to each bound, from the counts of non-empty buckets.

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
