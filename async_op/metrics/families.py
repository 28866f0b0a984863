"""Metrics in Prometheus's terms: families of samples, and the text that it reads, for programs without its client."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, TypeVar

_Statistics = TypeVar("_Statistics")

Kind = Literal["counter", "gauge", "histogram"]

Labels = Mapping[str, str]

Bucket = tuple[float, int]
"""An upper bound in seconds, and the number of values up to it."""

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_IN_LABELS = str.maketrans({"\\": "\\\\", "\n": "\\n", '"': '\\"'})
_IN_HELP = str.maketrans({"\\": "\\\\", "\n": "\\n"})


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


def family_of(prefix: str, name: str, kind: Kind, text: str, found: Iterable[tuple[Labels, object]]) -> Family:
    """Return the family of one attribute of statistics; those without a value have no sample."""
    values = [(labels, getattr(one, name)) for labels, one in found]
    samples = tuple(Sample(labels, float(value)) for labels, value in values if value is not None)
    return Family(prefix + name, kind, text, samples)


def split_family(
    name: str,
    kind: Kind,
    text: str,
    label: str,
    split: Callable[[_Statistics], Mapping[str, float]],
    found: Iterable[tuple[Labels, _Statistics]],
) -> Family:
    """Return the family of a part of statistics that has several values, which a label tells apart."""
    samples = [Sample({**labels, label: part}, value) for labels, one in found for part, value in split(one).items()]
    return Family(name, kind, text, tuple(samples))


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


def exposition(families: Iterable[Family]) -> str:
    """Return the text of metrics.

    Examples
    --------
    >>> print(exposition([Family("calls", "counter", "Calls made.", (Sample({"job": "prices"}, 3.0),))]), end="")
    # HELP calls_total Calls made.
    # TYPE calls_total counter
    calls_total{job="prices"} 3.0
    """
    return "".join(line + "\n" for family in families for line in _lines(family))


def _lines(family: Family) -> Iterator[str]:
    name = family.name + "_total" if family.kind == "counter" else family.name
    yield f"# HELP {name} {family.help.translate(_IN_HELP)}"
    yield f"# TYPE {name} {family.kind}"
    for sample in family.samples:
        if family.kind == "histogram":
            yield from _histogram(name, sample)
        else:
            yield f"{name}{_labels(sample.labels)} {_number(sample.value)}"


def _histogram(name: str, sample: Sample) -> Iterator[str]:
    for bound, count in sample.buckets:
        yield f"{name}_bucket{_labels({**sample.labels, 'le': _number(bound)})} {_number(count)}"
    yield f"{name}_sum{_labels(sample.labels)} {_number(sample.value)}"
    yield f"{name}_count{_labels(sample.labels)} {_number(sample.buckets[-1][1] if sample.buckets else 0)}"


def _labels(labels: Mapping[str, str]) -> str:
    pairs = ",".join(f'{name}="{value.translate(_IN_LABELS)}"' for name, value in labels.items())
    return f"{{{pairs}}}" if pairs else ""


def _number(value: float) -> str:
    number = float(value)
    return {"inf": "+Inf", "-inf": "-Inf", "nan": "NaN"}.get(repr(number), repr(number))
