"""The watermark of several channels, as its definition has it, and at a cost that does not grow with them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from async_op.job.channels import ChannelWatermarks

CHANNELS = 4

CHANGES = st.lists(st.tuples(st.integers(0, CHANNELS - 1), st.booleans() | st.integers(0, 9)), max_size=300)


@given(CHANGES)
def test_it_is_the_smallest_of_those_that_are_not_idle_or_else_the_largest(changes: list[tuple[int, int]]) -> None:
    watermarks = ChannelWatermarks(range(CHANNELS))
    marks, idle = dict[int, int | None].fromkeys(range(CHANNELS)), set[int]()
    for channel, change in changes:
        before = marks[channel], channel in idle
        if isinstance(change, bool):
            (idle.add if change else idle.discard)(channel)
            has_changed = watermarks.set_idle(channel, change)
        else:
            marks[channel] = max(change, -1 if (mark := marks[channel]) is None else mark)
            has_changed = watermarks.rise(channel, change)

        assert has_changed == ((marks[channel], channel in idle) != before)
        assert (watermarks.idle, watermarks.are_idle) == (idle, len(idle) == CHANNELS)
        known = [mark for mark in marks.values() if mark is not None]
        active = [mark for channel, mark in marks.items() if channel not in idle]
        smallest = None if None in active else min((mark for mark in active if mark is not None), default=None)
        assert watermarks.current() == (smallest if active else max(known, default=None))


class Counted(ChannelWatermarks):
    looks = 0

    def _holds(self, mark: int, channel: int) -> bool:
        self.looks += 1
        return super()._holds(mark, channel)


def test_a_change_looks_at_few_channels() -> None:
    watermarks, changes = Counted(range(1000)), 0
    for mark in range(20):
        for channel in range(1000):
            watermarks.rise(channel, mark * 1000 + channel)
            watermarks.current()
            watermarks.set_idle(channel, channel % 7 == mark % 7)
            watermarks.current()
            changes += 4
    assert watermarks.looks <= 3 * changes


def test_marks_that_were_passed_take_no_memory() -> None:
    watermarks = ChannelWatermarks(range(2))
    watermarks.rise(0, 0)
    for mark in range(10_000):
        watermarks.rise(1, mark)
        watermarks.set_idle(1, mark % 2 == 0)
    watermarks.set_idle(1, False)
    assert watermarks.current() == 0
    assert len(watermarks._heap) < 100
