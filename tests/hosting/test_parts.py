"""The pure pieces: who is let in, which parts belong together, frames."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from async_op.hosting import errors
from async_op.hosting import messages as say
from async_op.hosting.epoch import one_of_each
from async_op.hosting.fencing import Fence, Fencing, NewestManifest
from async_op.hosting.wire import frames
from async_op.hosting.wire.sockets import is_proof, new_nonce, proof_of


@pytest.mark.parametrize(
    ("manifest", "judged"),
    [
        (NewestManifest("m1", None), None),
        (NewestManifest("m1", "a cut of another host"), None),
        (NewestManifest("m2", None), "replace"),
        (NewestManifest(None, None), "replace"),
    ],
)
def test_a_restored_host_continues_from_that_manifest_only(manifest: NewestManifest, judged: str | None) -> None:
    fencing = Fencing("run", "m1")

    assert fencing.judge("run", Fence(1, 1), manifest, is_being_fed=False) == judged


@pytest.mark.parametrize(
    ("manifest", "judged"),
    [
        (NewestManifest("m2", "c2"), None),
        (NewestManifest("m9", "c2"), None),
        (NewestManifest("m2", "c1"), "replace"),
        (NewestManifest("m2", None), "replace"),
        (NewestManifest("m1", None), "replace"),
    ],
)
def test_a_host_that_has_cut_continues_where_its_last_cut_is_named(
    manifest: NewestManifest, judged: str | None
) -> None:
    fencing = Fencing("run", "m1")
    fencing.mark_dirty()
    fencing.mark_cut("c1")
    fencing.mark_dirty()
    fencing.mark_cut("c2")

    assert fencing.judge("run", Fence(1, 1), manifest, is_being_fed=False) == judged


def test_a_host_that_somebody_was_let_into_is_dirty_until_its_cut() -> None:
    fencing = Fencing("run", None)
    assert fencing.judge("run", Fence(0, 1), NewestManifest(None, None), is_being_fed=False) is None
    fencing.mark_dirty()

    assert fencing.judge("run", Fence(0, 2), NewestManifest(None, None), is_being_fed=False) == "replace"


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5)), min_size=1))
def test_only_newer_fences_are_judged_at_all(fences: list[tuple[int, int]]) -> None:
    fencing = Fencing("run", None)
    newest = Fence(-1, -1)
    for fence in map(Fence._make, fences):
        judged = fencing.judge("run", Fence(*fence), NewestManifest(None, None), is_being_fed=False)
        assert (judged == "stale") == (fence <= newest)
        newest = max(newest, fence)
        assert fencing.may_stop(fence) == (fence >= newest)


def test_parts_of_another_job_are_not_taken() -> None:
    parts = [say.Part("job 1", 0, 5, "old"), say.Part("job 2", 1, 5, "b"), say.Part("job 2", 0, 5, "a")]

    assert [part.handle for part in one_of_each(parts, "job 2", 2)] == ["a", "b"]
    with pytest.raises(errors.IncompleteEpoch) as missing:
        one_of_each(parts, "job 1", 2)
    assert missing.value.missing == [1]


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
