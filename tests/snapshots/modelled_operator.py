"""An operator in one process beside plain dicts, which say what its subtasks should hold."""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple

from keygroups import key_group_of, range_of, subtask_of
from keygroups.state import MISSING, MemoryBackend, Transaction, identity_of
from snapshots import InFlightElement, Snapshot, SubtaskSnapshot
from tests.snapshot_kit import COUNT, PROFILE, Content, G, loaded, part, record, restored, watermark

STATES = (COUNT, PROFILE)
NO_FLINK_KEY = b"a"


class Barrier(NamedTuple):
    """What was cut, and what it must turn out to be."""

    parts: list[SubtaskSnapshot]
    model: Content
    queues: list[list[InFlightElement]]


class Operator:
    """All subtasks of one operator, in one process, and what they should hold."""

    def __init__(self, parallelism: int, keyed: bool) -> None:
        self.max_parallelism, self.hash = G, "xxhash64"
        self.keyed = keyed
        self.identity = 0
        self.begin(parallelism, {})

    def begin(self, parallelism: int, model: Content) -> None:
        """Begin with empty subtasks; the model says what they should come to hold."""
        self.model: Content = {state.name: dict(model.get(state.name, {})) for state in STATES}
        self.parallelism = min(parallelism, self.max_parallelism)
        ranges = [range_of(n, self.parallelism, self.max_parallelism) for n in range(self.parallelism)]
        self.backends = [MemoryBackend(STATES, key_groups) for key_groups in ranges]
        self.queues: list[list[InFlightElement]] = [[] for _ in ranges]
        self.watermarks: list[int | None] = [None] * self.parallelism

    def owner(self, key: Any) -> tuple[MemoryBackend, int]:
        key_group = self.key_group_of(key)
        return self.backends[subtask_of(key_group, self.parallelism, self.max_parallelism)], key_group

    def key_group_of(self, key: Any) -> int:
        return key_group_of(key, self.max_parallelism, self.hash)

    def takes(self, key: Any) -> bool:
        return key != NO_FLINK_KEY or self.hash != "flink"

    def put(self, counts: dict[Any, int | None]) -> None:
        counts = {key: count for key, count in counts.items() if self.takes(key)}
        for key, count in counts.items():
            backend, key_group = self.owner(key)
            backend.tables["count"].put(key_group, identity_of(key), count)
        self.model["count"] |= counts

    def delete(self, key: Any, state: str) -> None:
        if not self.takes(key):
            return
        backend, key_group = self.owner(key)
        backend.tables[state].put(key_group, identity_of(key), MISSING)
        self.model[state].pop(key, None)

    def invoke(self, key: Any, count: int | None, profile: object, completes: bool) -> None:
        if not self.takes(key):
            return
        backend, key_group = self.owner(key)
        transaction = Transaction(backend, key, key_group)
        assert transaction.state(PROFILE).value() == self.model["profile"].get(key)
        transaction.state(PROFILE).update(profile)
        if count is None:
            transaction.state(COUNT).clear()
        else:
            transaction.state(COUNT).update(count)
        if not completes:
            transaction.abandon()
            return
        transaction.commit()
        self.model["profile"][key] = profile
        self.model["count"].pop(key, None)
        if count is not None:
            self.model["count"][key] = count

    def arrive(self, key: Any, subtask: int, completed: bool) -> None:
        """A record; without keys, whichever subtask the source gives it to."""
        if not self.takes(key):
            return
        if self.keyed:
            subtask = subtask_of(self.key_group_of(key), self.parallelism, self.max_parallelism)
        subtask %= self.parallelism
        self.identity += 1
        element = record(
            key if self.keyed else None,
            self.next_sequence(subtask),
            subtask,
            value=key,
            element_id=str(self.identity),
            completed=completed,
            outputs=(key, self.identity) if completed else None,
        )
        key_group = self.key_group_of(key) if self.keyed else element.key_group
        self.queues[subtask].append(element._replace(key_group=key_group))

    def advance(self, step: int) -> None:
        """A watermark, which reaches every subtask."""
        for subtask, queue in enumerate(self.queues):
            known = [element.timestamp for element in queue if element.is_watermark]
            newest = known[-1] if known else self.watermarks[subtask]
            queue.append(watermark((newest or 0) + step, self.next_sequence(subtask), subtask))

    def emit(self, subtask: int) -> None:
        """The head of a queue leaves."""
        subtask %= self.parallelism
        if self.queues[subtask]:
            element = self.queues[subtask].pop(0)
            if element.is_watermark:
                self.watermarks[subtask] = element.timestamp

    def next_sequence(self, subtask: int) -> int:
        return self.queues[subtask][-1].sequence + 1 if self.queues[subtask] else 0

    def cut(self) -> Barrier:
        parts = [
            part(
                backend,
                subtask,
                self.parallelism,
                self.queues[subtask],
                self.watermarks[subtask],
                self.max_parallelism,
                self.hash,
            )
            for subtask, backend in enumerate(self.backends)
        ]
        model = {state: dict(values) for state, values in self.model.items()}
        return Barrier(parts, model, [list(queue) for queue in self.queues])

    def restore(
        self, snapshot: Snapshot, parallelism: int | None, model: Content, elements: list[list[InFlightElement]]
    ) -> None:
        """Restore what was committed: the model, and the elements of each old queue."""
        self.max_parallelism, self.hash = snapshot.max_parallelism, snapshot.manifest.hash
        self.begin(parallelism or snapshot.parallelism, model)
        self.backends = [restored(snapshot, n, self.parallelism) for n in range(self.parallelism)]
        for subtask in range(self.parallelism):
            queue = snapshot.restore(subtask, self.parallelism).queue()
            self.check_order(subtask, queue.elements, elements)
            self.queues[subtask] = [element._replace(channel=subtask) for element in queue.elements]
            self.watermarks[subtask] = queue.watermark
        assert placeless(self.queues) == placeless(elements), "a record is lost, doubled or changed"

    def check_order(
        self, subtask: int, elements: tuple[InFlightElement, ...], queues: list[list[InFlightElement]]
    ) -> None:
        """Within what one old queue gave, nothing has overtaken anything."""
        for channel, before in enumerate(queues):
            came = [e.element_id for e in elements if e.channel == channel and not e.is_watermark]
            assert came == [e.element_id for e in before if e.element_id in set(came) and not e.is_watermark]
        if self.keyed:
            records = [element for element in elements if not element.is_watermark]
            assert all(element.key_group == self.key_group_of(element.key) for element in records)
            owners = {subtask_of(element.key_group, self.parallelism, self.max_parallelism) for element in records}
            assert owners <= {subtask}

    def check_value(self, key: Any) -> None:
        if not self.takes(key):
            return
        backend, key_group = self.owner(key)
        for state in STATES:
            expected = self.model[state.name].get(key, MISSING)
            found = backend.tables[state.name].get(key_group, identity_of(key))
            assert (found, type(found)) == (expected, type(expected))

    def check_owners(self) -> None:
        """Every key group has one owner."""
        count = self.max_parallelism
        owners = Counter(group for n in range(self.parallelism) for group in range_of(n, self.parallelism, count))
        assert owners == Counter(range(count))

    def check_content(self) -> None:
        """The union over the subtasks, loaded whole, is the model."""
        held: Content = {state.name: {} for state in STATES}
        for backend in self.backends:
            for cut in backend.cut():
                for key_group, group in cut.groups.items():
                    for key, value in loaded(group).items():
                        assert self.key_group_of(key) == key_group
                        assert key not in held[cut.descriptor.name]
                        held[cut.descriptor.name][key] = value
        assert held == self.model


def placeless(queues: list[list[InFlightElement]]) -> Counter[str]:
    """Return the records but for their places."""
    records = (element for queue in queues for element in queue if not element.is_watermark)
    return Counter(repr(element._replace(channel=0, sequence=0, key_group=0)) for element in records)
