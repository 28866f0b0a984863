"""The pure pieces: who is let in, which parts belong together, frames, ages, delivery."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from async_op.elements import Record, Watermark
from async_op.hosting import errors
from async_op.hosting import messages as say
from async_op.hosting.epoch import one_of_each
from async_op.hosting.fencing import Fencing
from async_op.hosting.wire import frames
from async_op.hosting.wire.secret import is_proof, new_nonce, proof_of
from async_op.subtask.ages import COARSENESS, MARKS_MAX, RESOLUTION_SECONDS, Ages
from async_op.subtask.outbox import RUN, Outbox


def hello(version: int, attempt: int, snapshot_id: str | None = None, cut_id: str | None = None) -> say.Hello:
    return say.Hello("run", say.Fence(version, attempt), say.Manifest(snapshot_id, cut_id), "job")


@pytest.mark.parametrize(
    ("manifest", "judged"),
    [
        (say.Manifest("m1", None), None),
        (say.Manifest("m1", "a cut of another host"), None),
        (say.Manifest("m2", None), "replace"),
        (say.Manifest(None, None), "replace"),
    ],
)
def test_a_restored_host_goes_on_from_that_manifest_only(manifest: say.Manifest, judged: str | None) -> None:
    fencing = Fencing("run", "m1")

    assert fencing.judge(say.Hello("run", say.Fence(1, 1), manifest, "job"), is_being_fed=False) == judged


@pytest.mark.parametrize(
    ("manifest", "judged"),
    [
        (say.Manifest("m2", "c2"), None),
        (say.Manifest("m9", "c2"), None),
        (say.Manifest("m2", "c1"), "replace"),
        (say.Manifest("m2", None), "replace"),
        (say.Manifest("m1", None), "replace"),
    ],
)
def test_a_host_that_has_cut_goes_on_where_its_last_cut_is_named(manifest: say.Manifest, judged: str | None) -> None:
    fencing = Fencing("run", "m1")
    fencing.mark_dirty()
    fencing.mark_cut("c1")
    fencing.mark_dirty()
    fencing.mark_cut("c2")

    assert fencing.judge(say.Hello("run", say.Fence(1, 1), manifest, "job"), is_being_fed=False) == judged


def test_a_host_that_somebody_was_let_into_is_dirty_until_its_cut() -> None:
    fencing = Fencing("run", None)
    assert fencing.judge(hello(0, 1), is_being_fed=False) is None
    fencing.mark_dirty()

    assert fencing.judge(hello(0, 2), is_being_fed=False) == "replace"


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5)), min_size=1))
def test_only_newer_fences_are_judged_at_all(fences: list[tuple[int, int]]) -> None:
    fencing = Fencing("run", None)
    newest = say.Fence(-1, -1)
    for fence in map(say.Fence._make, fences):
        judged = fencing.judge(hello(*fence), is_being_fed=False)
        assert (judged == "stale") == (fence <= newest)
        newest = max(newest, fence)
        assert fencing.may_stop(fence) == (fence >= newest)


def test_parts_of_another_job_are_not_taken() -> None:
    parts = [say.Part("job 1", 0, 5, "old"), say.Part("job 2", 1, 5, "b"), say.Part("job 2", 0, 5, "a")]

    assert [part.handle for part in one_of_each(parts, "job 2", 2)] == ["a", "b"]
    with pytest.raises(errors.IncompleteEpoch) as missing:
        one_of_each(parts, "job 1", 2)
    assert missing.value.missing == [1]


def test_outputs_are_packed_in_runs_of_bounded_size() -> None:
    outbox = Outbox(len, 10**6)
    for number in range(2 * RUN + 3):
        outbox(Record(number, None))
    outbox(Watermark(1))

    assert len(outbox) == 2 * RUN + 3
    assert outbox.take() == [RUN, RUN, 3]
    assert (len(outbox), outbox.take(), outbox.watermarks) == (0, [], 1)


@given(st.lists(st.tuples(st.integers(1, 5), st.floats(0, 10)), max_size=20))
def test_an_age_is_that_of_the_mark_after_the_element(steps: list[tuple[int, float]]) -> None:
    ages, marks, number, now = Ages(), [], 0, 0.0
    for more, seconds in steps:
        number, now = number + more, now + seconds
        ages.mark(number, now)
        marks.append((number, now))
    for oldest in range(number):
        came = next(moment for following, moment in marks if following > oldest)
        age = ages.of(oldest, now + 1.0)
        assert age is not None
        assert -1e-9 <= age - (now + 1.0 - came) <= RESOLUTION_SECONDS + 1e-9


def test_the_age_of_a_timer_which_nobody_has_marked_counts_from_the_first_look() -> None:
    ages = Ages()
    assert ages.of(5, 1.0) == 0.0
    assert ages.of(5, 4.0) == 3.0
    assert ages.of(None, 5.0) is None


def test_a_busy_operator_leaves_a_bounded_number_of_marks() -> None:
    ages = Ages()
    for number in range(10_000):
        ages.mark(number, number * RESOLUTION_SECONDS / 1000)
    assert len(ages._marks) <= 11


def test_a_call_that_hangs_leaves_a_bounded_number_of_marks_and_only_makes_ages_coarser() -> None:
    ages, came, now = Ages(), [], 0.0
    for number in range(20_000):
        came.append(now)
        ages.mark(number + 1, now)
        assert len(ages._marks) <= MARKS_MAX
        now += 3600.0 if number % 5000 == 4999 else 0.15  # now and then, there is no input for an hour
    for number in (0, 1, 2, 4999, 5000, 7777, 12_345, 19_999):
        age = ages.of(number, now)
        assert age is not None
        assert -1e-6 <= age - (now - came[number]) <= COARSENESS * now
    assert len(ages._marks) == 1


def test_rows_travel_as_arrow() -> None:
    batch = pa.RecordBatch.from_pylist([{"a": 1, "b": "x"}])
    frame = frames.encode(say.Feed(batch))
    size, kind = frames.size_and_kind(frame[: frames.HEADER_BYTES])

    assert kind == frames.ROWS
    assert size == len(frame) - frames.HEADER_BYTES
    assert frames.decode(kind, frame[frames.HEADER_BYTES :]).rows.equals(batch)


def test_other_messages_travel_as_they_are() -> None:
    frame = frames.encode(say.Poll())
    _, kind = frames.size_and_kind(frame[: frames.HEADER_BYTES])

    assert frames.decode(kind, frame[frames.HEADER_BYTES :]) == say.Poll()


def test_a_frame_over_the_limit_is_neither_sent_nor_read(monkeypatch: pytest.MonkeyPatch) -> None:
    header = frames.encode(say.Feed(b"x" * 1000))[: frames.HEADER_BYTES]
    monkeypatch.setattr(frames, "FRAME_BYTES_MAX", 999)

    with pytest.raises(errors.MessageTooLarge):
        frames.size_and_kind(header)
    with pytest.raises(errors.MessageTooLarge):
        frames.encode(say.Feed(b"x" * 1000))


def test_an_error_that_cannot_be_pickled_is_told_as_text() -> None:
    class Local(Exception):
        pass

    frame = frames.encode_reply(say.Failed(Local("why")))
    failed = frames.decode(frames.MESSAGE, frame[frames.HEADER_BYTES :])

    assert isinstance(failed.error, errors.HostFailed)
    assert failed.error.cause == "Local: why"


def test_a_proof_is_good_for_one_side_one_secret_and_one_pair_of_nonces() -> None:
    mine, yours = new_nonce(), new_nonce()
    proof = proof_of(b"secret", "feeder", mine, yours)

    assert is_proof(proof, b"secret", "feeder", mine, yours)
    assert not is_proof(proof, b"secret", "host", mine, yours)
    assert not is_proof(proof, b"other", "feeder", mine, yours)
    assert not is_proof(proof, b"secret", "feeder", yours, mine)
    assert not is_proof(b"", b"secret", "feeder", mine, yours)
