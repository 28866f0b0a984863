"""Families of samples as the text that Prometheus reads, for programs without its client."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from async_op.metrics.families import Family, Sample

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_IN_LABELS = str.maketrans({"\\": "\\\\", "\n": "\\n", '"': '\\"'})
_IN_HELP = str.maketrans({"\\": "\\\\", "\n": "\\n"})


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
