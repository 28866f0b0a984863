"""The text of metrics is read back by Prometheus's own parser."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from async_op.metrics.families import Family, Sample, exposition

TEXT = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\x85\u2028\u2029\x0b\x0c\x1c\x1d\x1e\r"), max_size=8
)
VALUES = st.floats(allow_nan=False) | st.integers(0, 2**60)


@given(TEXT.filter(str.strip), st.sampled_from(["counter", "gauge"]), st.lists(st.tuples(TEXT, VALUES), min_size=1))
def test_labels_and_values_are_read_back_as_they_were(help_: str, kind: str, pairs: list[tuple[str, float]]) -> None:
    samples = tuple(Sample({"job": label}, value) for label, value in pairs)
    (read,) = text_string_to_metric_families(exposition([Family("calls", kind, help_, samples)]))  # type: ignore[arg-type]
    assert (read.name, read.type) == ("calls", kind)
    assert [(one.labels["job"], one.value) for one in read.samples] == [(name, float(value)) for name, value in pairs]


def test_a_histogram_has_its_buckets_sum_and_count() -> None:
    sample = Sample({"job": "a"}, 2.5, ((0.1, 1), (float("inf"), 3)))
    (read,) = text_string_to_metric_families(exposition([Family("seconds", "histogram", "How long.", (sample,))]))
    assert [(one.name, one.labels.get("le"), one.value) for one in read.samples] == [
        ("seconds_bucket", "0.1", 1),
        ("seconds_bucket", "+Inf", 3),
        ("seconds_sum", None, 2.5),
        ("seconds_count", None, 3),
    ]
