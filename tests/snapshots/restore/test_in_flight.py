"""Where in-flight elements go after a rescale (Rule 2), and in which order (Rule 3)."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from keygroups import key_group_of, range_of, subtask_of
from snapshots import InFlightElement, Snapshot
from snapshots.format.in_flight_columns import in_flight_elements
from snapshots.format.in_flight_elements import RestoredQueue, deal, merge_channels
from snapshots.format.subtask import RefusedValue
from snapshots.restore.share import SubtaskRestore
from tests.quick import few_are_quick
from tests.snapshot_kit import G, new_store, parts, record, watermark, words


def queues_of(snapshot: Snapshot, parallelism: int | None = None) -> list[RestoredQueue]:
    parallelism = snapshot.parallelism if parallelism is None else parallelism
    return [snapshot.restore(subtask, parallelism).queue() for subtask in range(parallelism)]


def ids(elements: Iterable[InFlightElement]) -> list[str]:
    return [element.element_id for element in elements if not element.is_watermark]


def spread(old: int, keys: Sequence[object]) -> list[InFlightElement]:
    """Return a record per key, each in the queue of the subtask that owned it."""
    queued: dict[int, int] = defaultdict(int)
    made = []
    for key in keys:
        channel = subtask_of(key_group_of(key, G), old, G)
        made.append(record(key, queued[channel], channel))
        queued[channel] += 1
    return made


class TestKeyed:
    @pytest.mark.parametrize(("old", "new"), few_are_quick(itertools.product([1, 2, 3, G], [1, 2, 3, 5, G])))
    def test_an_element_lands_once_and_where_its_state_lands(self, old: int, new: int) -> None:
        elements = spread(old, words(60))
        snapshot = new_store().write(parts({}, parallelism=old, in_flight=elements))
        assert snapshot.in_flight_count == 60

        queues = queues_of(snapshot, new)
        assert sorted(ids(element for queue in queues for element in queue.elements)) == sorted(ids(elements))
        for subtask, queue in enumerate(queues):
            assert {subtask_of(element.key_group, new, G) for element in queue.elements} <= {subtask}

    @pytest.mark.parametrize("new", [1, 2, 3, G])
    def test_the_order_of_a_queue_is_kept(self, new: int) -> None:
        elements = spread(2, [f"key {n % 7}" for n in range(50)])
        snapshot = new_store().write(parts({}, in_flight=elements))

        for queue in queues_of(snapshot, new):
            for channel in range(2):
                sequence = [int(name.split("-")[1]) for name in ids(queue.elements) if name.startswith(f"{channel}-")]
                assert sequence == sorted(sequence)

    @pytest.mark.parametrize("count", [0, 40])
    def test_metadata_only_repartitions_do_not_change_who_wrote_what(self, count: int) -> None:
        store = new_store()
        watermarks = {0: 4, 1: 3, 2: 2, 3: 1}
        store.write(parts({}, parallelism=4, in_flight=spread(4, words(count)), watermarks=watermarks))
        direct = queues_of(store.load(1), 3)
        store.repartition(G)
        store.repartition(3)
        latest = store.latest()

        assert latest is not None
        assert queues_of(latest) == direct

    def test_everything_about_an_element_is_kept(self) -> None:
        pending = record("key 1", 0, value={"a": (1, None)}, timestamp=5, attempt=3, remaining=0.25)
        completed = record("key 1", 1, completed=True, outputs=({"b": 2}, ("c",)), remaining=None, timestamp=None)
        without_outputs = record("key 1", 2, completed=True, outputs=())
        elements = (pending, completed, without_outputs)
        snapshot = new_store().write(parts({}, in_flight=elements))
        queue = snapshot.restore(pending.channel).queue()

        assert queue.elements == elements

    def test_keys_keep_their_types(self) -> None:
        keys: list[Any] = [1, "1", b"1", 1.5, ("a", 1), True]
        snapshot = new_store().write(parts({}, in_flight=spread(2, keys)))
        found = [element.key for queue in queues_of(snapshot) for element in queue.elements]

        assert sorted(map(repr, found)) == sorted(map(repr, keys))

    def test_an_unstorable_element_comes_back_as_refused_with_its_reason(self) -> None:
        element = record("key 1", 0, value={"socket": object()})

        snapshot = new_store().write(parts({}, in_flight=[element]))

        (restored,) = [one for queue in queues_of(snapshot, 1) for one in queue.elements]
        assert restored.element_id == element.element_id
        assert isinstance(restored.value, RefusedValue)
        assert f"the in-flight element '{element.element_id}' holds a value of type object" in restored.value.reason

    def test_an_element_in_the_queue_of_a_subtask_that_does_not_own_it_is_not_lost(self) -> None:
        owner = record("key 1", 0).channel
        misplaced = record("key 1", 0, 1 - owner)
        snapshot = new_store().write(parts({}, in_flight=[misplaced]))

        for parallelism in (1, 2, G):
            queues = queues_of(snapshot, parallelism)
            assert [ids(queue.elements) for queue in queues if queue.elements] == [[misplaced.element_id]]

    @pytest.mark.parametrize("parallelism", [2, 3, G])
    def test_of_a_row_group_that_others_share_a_subtask_takes_its_own_elements(self, parallelism: int) -> None:
        """One row group has all of them, so that what is read is more than what is owned."""
        snapshot = new_store().write(parts({}, parallelism=1, in_flight=spread(1, [f"key {n}" for n in range(50)])))

        queues = queues_of(snapshot, parallelism)
        for subtask, queue in enumerate(queues):
            owned = range_of(subtask, parallelism, G)
            assert all(element.key_group in owned for element in queue.elements)
        assert sum(len(queue.elements) for queue in queues) == 50

    def test_many_elements_are_read_by_their_range(self) -> None:
        """More than one row group, of which each subtask needs only some."""
        elements = spread(1, [f"key {n}" for n in range(3000)])
        snapshot = new_store().write(parts({}, parallelism=1, in_flight=[*elements, watermark(7, 3000)]))

        assert sum(len(ids(queue.elements)) for queue in queues_of(snapshot, G)) == 3000
        assert sorted(ids(in_flight_elements(snapshot.in_flight()))) == sorted([*ids(elements)])

    def test_all_elements_can_be_looked_at(self) -> None:
        elements = [*spread(2, words(20)), watermark(7, 100, 0), watermark(9, 100, 1)]
        table = new_store().write(parts({}, in_flight=elements)).in_flight()

        assert sorted(in_flight_elements(table), key=str) == sorted(elements, key=str)
        assert new_store().write(parts({})).in_flight().schema.names == table.schema.names


class TestKeyless:
    def snapshot(self, counts: Sequence[int]) -> Snapshot:
        elements = [record(None, n, channel) for channel, count in enumerate(counts) for n in range(count)]
        return new_store().write(parts({}, parallelism=len(counts), in_flight=elements))

    def test_an_unchanged_parallelism_leaves_each_queue_as_it_is(self) -> None:
        queues = queues_of(self.snapshot([5, 0, 1]))

        assert [ids(queue.elements) for queue in queues] == [["0-0", "0-1", "0-2", "0-3", "0-4"], [], ["2-0"]]

    @pytest.mark.parametrize(
        ("new", "shares"),
        [
            (1, [["0-0", "0-1", "0-2", "1-0", "1-1", "1-2", "1-3"]]),
            (3, [["0-0", "0-1", "0-2"], ["1-0", "1-1"], ["1-2", "1-3"]]),
            (4, [["0-0", "0-1"], ["0-2", "1-0"], ["1-1", "1-2"], ["1-3"]]),
            (8, [["0-0"], ["0-1"], ["0-2"], ["1-0"], ["1-1"], ["1-2"], ["1-3"], []]),
        ],
    )
    def test_another_parallelism_deals_contiguous_runs(self, new: int, shares: list[list[str]]) -> None:
        snapshot = self.snapshot([3, 4])

        assert [ids(queue.elements) for queue in queues_of(snapshot, new)] == shares

    def test_after_a_repartition_they_are_assigned_from_the_queues_that_wrote_them(self) -> None:
        store = new_store()
        elements = [record(None, n, channel) for channel in range(2) for n in range(2)]
        store.write(parts({}, in_flight=elements))
        store.repartition(4)
        one, two = store.repartition(1), store.repartition(2)

        assert [ids(queue.elements) for queue in queues_of(one)] == [["0-0", "0-1", "1-0", "1-1"]]
        assert [ids(queue.elements) for queue in queues_of(two)] == [["0-0", "0-1"], ["1-0", "1-1"]]

    def test_a_dealt_element_brings_the_watermark_of_its_queue(self) -> None:
        """Subtask 1 of 4 takes elements of the old subtask 1, whose key groups it does not own."""
        elements = [record(None, 0, 1), record(None, 1, 1), watermark(50, 2, 1), record(None, 3, 1), record(None, 4, 1)]
        snapshot = new_store().write(parts({}, in_flight=elements, watermarks={0: 90, 1: 10}))
        restore: list[SubtaskRestore] = [snapshot.restore(subtask, 4) for subtask in range(4)]

        assert [queue.queue().watermark for queue in restore] == [10, 10, 10, 10]
        assert [[e.timestamp for e in r.queue().elements if e.is_watermark] for r in restore] == [[50]] * 4

    @given(st.lists(st.integers(0, 6), min_size=1, max_size=5), st.integers(1, 9))
    def test_each_element_is_assigned_once_in_order_and_evenly(self, counts: list[int], parallelism: int) -> None:
        shares = [deal(counts, parallelism, subtask) for subtask in range(parallelism)]
        dealt = [
            [(channel, n) for channel, (start, end) in share.items() for n in range(start, end)] for share in shares
        ]

        assert [place for share in dealt for place in share] == [
            (channel, n) for channel, count in enumerate(counts) for n in range(count)
        ]
        assert sorted(map(len, dealt), reverse=True) == list(map(len, dealt))
        assert len(dealt[0]) - len(dealt[-1]) <= 1


class TestWatermarks:
    def test_a_subtask_starts_at_the_minimum_of_the_queues_that_it_continues(self) -> None:
        snapshot = new_store().write(parts({}, parallelism=4, watermarks={0: 40, 1: 30, 2: 20}))

        assert [queue.watermark for queue in queues_of(snapshot, 4)] == [40, 30, 20, None]
        assert [queue.watermark for queue in queues_of(snapshot, 2)] == [30, None]
        assert [queue.watermark for queue in queues_of(snapshot, 1)] == [None]
        assert [queue.watermark for queue in queues_of(snapshot, 8)] == [40, 40, 30, 30, 20, 20, None, None]

    def test_a_split_queue_gives_its_watermarks_to_every_part(self) -> None:
        elements = [watermark(10, 0), *[record(key, n + 1, 0) for n, key in enumerate(words(8))], watermark(20, 9)]
        queues = queues_of(new_store().write(parts({}, parallelism=1, in_flight=elements)), 3)

        assert sum(len(ids(queue.elements)) for queue in queues) == 8
        for queue in queues:
            assert [queue.elements[0].timestamp, queue.elements[-1].timestamp] == [10, 20]
            assert sum(element.is_watermark for element in queue.elements) == 2

    def test_a_merged_watermark_waits_for_the_slower_queue(self) -> None:
        queue = merge_channels(
            [record(None, 0, 0), watermark(10, 1, 0), record(None, 2, 0), record(None, 0, 1), watermark(7, 1, 1)],
            {0: None, 1: 5},
        )

        assert queue.watermark is None
        assert [shown(element) for element in queue.elements] == ["0-0", 5, "1-0", 7, "0-2"]

    def test_nothing_in_flight_is_an_empty_queue(self) -> None:
        assert merge_channels([], {0: 5}) == RestoredQueue((), 5)


def shown(element: InFlightElement) -> str | int | None:
    return element.timestamp if element.is_watermark else element.element_id


Channels = dict[int, tuple[int | None, list[int | None]]]
"""Of each channel the watermark that it had emitted, and its queue: None for a record, else a watermark."""


@st.composite
def channels(draw: st.DrawFn, most: int = 4) -> Channels:
    made: Channels = {}
    for channel in draw(st.lists(st.integers(0, 9), unique=True, min_size=1, max_size=most)):
        emitted = draw(st.none() | st.integers(0, 10))
        newest = -1 if emitted is None else emitted
        queue: list[int | None] = []
        for step in draw(st.lists(st.none() | st.integers(1, 4), max_size=8)):
            if step is not None:
                newest += step
            queue.append(None if step is None else newest)
        made[channel] = (emitted, queue)
    return made


def merged(made: Channels) -> RestoredQueue:
    elements = [
        record(None, n, channel) if timestamp is None else watermark(timestamp, n, channel)
        for channel, (_, queue) in made.items()
        for n, timestamp in enumerate(queue)
    ]
    return merge_channels(reversed(elements), {channel: emitted for channel, (emitted, _) in made.items()})


def low(watermarks: Iterable[int | None]) -> float:
    return min(float("-inf") if timestamp is None else timestamp for timestamp in watermarks)


class TestMergedChannels:
    @given(channels())
    def test_every_record_is_there_once_and_in_the_order_of_its_channel(self, made: Channels) -> None:
        found: dict[int, list[str]] = {channel: [] for channel in made}
        for element in merged(made).elements:
            if not element.is_watermark:
                found[element.channel].append(element.element_id)

        assert found == {
            channel: [f"{channel}-{n}" for n, timestamp in enumerate(queue) if timestamp is None]
            for channel, (_, queue) in made.items()
        }

    @given(channels())
    @example({0: (None, [None, 5]), 1: (9, [])})
    def test_no_watermark_overtakes_a_record_that_stood_before_it(self, made: Channels) -> None:
        """A record may still be as early as the last watermark before it in its own queue promises, and no earlier."""
        promised = {
            f"{channel}-{n}": low([next((t for t in reversed(queue[:n]) if t is not None), emitted)])
            for channel, (emitted, queue) in made.items()
            for n, timestamp in enumerate(queue)
            if timestamp is None
        }
        queue = merged(made)
        newest = low([queue.watermark])
        for element in queue.elements:
            if element.is_watermark:
                newest = low([element.timestamp])
            else:
                assert newest <= promised[element.element_id]

    @given(channels())
    def test_the_watermark_is_the_minimum_over_the_channels_at_the_start_and_at_the_end(self, made: Channels) -> None:
        queue = merged(made)
        timestamps = [low([queue.watermark]), *[low([e.timestamp]) for e in queue.elements if e.is_watermark]]

        assert timestamps[0] == low(emitted for emitted, _ in made.values())
        assert timestamps[-1] == low(
            next((t for t in reversed(queue) if t is not None), emitted) for emitted, queue in made.values()
        )
        assert timestamps == sorted(set(timestamps))

    @given(channels(most=1))
    def test_a_single_channel_stays_as_it_is(self, made: Channels) -> None:
        ((emitted, before),) = made.values()
        queue = merged(made)

        assert queue.watermark == emitted
        assert [element.timestamp if element.is_watermark else None for element in queue.elements] == before

    @given(channels())
    def test_places_in_the_merged_queue_count_from_zero(self, made: Channels) -> None:
        queue = merged(made)

        assert [element.sequence for element in queue.elements] == list(range(len(queue.elements)))
