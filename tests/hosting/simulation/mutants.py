"""Each rule of hosting, broken on purpose: the simulation has to see it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, NamedTuple

import pytest

from async_op.epochs.delivery import SinkDelivery, Values
from async_op.hosting import epoch
from async_op.hosting import messages as say
from async_op.hosting.errors import HostUnreachable
from async_op.hosting.fencing import Fencing
from async_op.hosting.host import Host
from async_op.hosting.lease import Lease
from async_op.in_flight.idempotency_keys import Identity
from async_op.spark.epoch.delivery import _ShippedDelivery
from async_op.subtask.inbox import Reserve, ReservedInbox
from async_op.subtask.outbox import Outbox
from async_op.subtask.subtask import Subtask
from keygroups import KeyGroupRange
from keygroups.state.group import ENTRY_KINDS
from keygroups.state.memory.table import MemoryTable
from snapshots import SubtaskRestore
from snapshots.commit import part_writer
from snapshots.restore.reader import ArrowGroup, LayeredReader
from tests.hosting.simulation import cluster, driver
from tests.hosting.simulation.delivery import Delivery
from tests.simulation.world.mutants import (
    a_lineage_is_not_kept,
    a_reduced_value_counts_twice,
    a_removed_entry_is_not_noted,
    all_have_one_lineage,
    no_answer_means_done,
    values_live_anew,
)

Break = Callable[[pytest.MonkeyPatch], None]


class Mutant(NamedTuple):
    """A rule that is broken, and what has to go wrong for anybody to notice."""

    broken: Break
    faults: tuple[str, ...]


MUTANTS: dict[str, Mutant] = {}
"""By the rule and what is done to it."""


def mutant(name: str, *faults: str) -> Callable[[Break], object]:
    """Add a way to break a rule."""
    return lambda broken: MUTANTS.setdefault(name, Mutant(broken, faults))


@mutant("H1: a fresh host begins with nothing, whatever the manifest holds")
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(cluster, "restored", lambda *_: None)


@mutant("H1: what has been cut is handed out once more")
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Outbox, "take", lambda box: [*box._runs, box._run])


@mutant("H2: a host goes on from any cut of its own")
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Fencing, "is_content_of", lambda fencing, manifest: fencing._content is not None)


@mutant("H2: a host goes on although somebody has fed it and left")
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Fencing, "mark_dirty", lambda fencing: None)


@mutant("H3: an older feeder is let in", "replay")
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Fencing, "is_newer", lambda fencing, fence: True)


@mutant("H3: an older stop is obeyed", "replay")
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Fencing, "may_stop", lambda fencing, fence: True)


@mutant("H3: two feeders share a host")
def _(patch: pytest.MonkeyPatch) -> None:
    hello = Host._hello

    def shared(one: Any, feeder: Any, message: Any) -> Any:
        if one._session is None:
            return hello(one, feeder, message)
        one._session.feeder = feeder
        return say.Done()

    patch.setattr(Host, "_hello", shared)


@mutant("H4: parts of several jobs are put together")
def _(patch: pytest.MonkeyPatch) -> None:
    def any_of_each(parts: Iterable[say.Part], job: str, parallelism: int) -> list[say.Part]:
        version = next(part.version for part in parts if part.job == job)
        picked: dict[int, say.Part] = {}
        for part in parts:
            if part.version == version:
                picked.setdefault(part.subtask_index, part)
        return [picked[index] for index in range(parallelism)]

    patch.setattr(driver, "one_of_each", any_of_each)


@mutant("H5: no lease ends")
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Lease, "renew", lambda lease: None)


@mutant("H5: a lease cannot be renewed")
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Lease, "renew", lambda lease: lease._timer or _begin(lease))


def _begin(lease: Any) -> None:
    lease._timer = lease._clock.call_at(lease._clock.time() + lease._seconds, lease._over)


@mutant("H6: anybody is let in", "stranger")
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(cluster, "is_proof", lambda *_: True)


@mutant("H7: nothing runs in the task")
def _(patch: pytest.MonkeyPatch) -> None:
    def refuse(ways: Any, hello: Any, reason: str) -> Any:
        yield
        raise HostUnreachable("no way")

    patch.setattr(epoch, "_in_task", refuse)


@mutant("H8: a host that has failed between epochs is replaced")
def _(patch: pytest.MonkeyPatch) -> None:
    hello = Host._hello

    def replaced(one: Any, feeder: Any, message: Any) -> Any:
        if one.subtask.failure is not None:
            one.ended.set()
            return say.Refused("replace")
        return hello(one, feeder, message)

    patch.setattr(Host, "_hello", replaced)


@mutant("H9: an epoch that the sink has not taken is forgotten")
def _(patch: pytest.MonkeyPatch) -> None:
    def once(delivery: Any) -> None:
        owed, delivery._owed = delivery._owed, None
        if owed is not None:
            delivery._deliver(owed)

    patch.setattr(Delivery, "settle", once)


@mutant("a commit counts that nobody has answered", "kill driver")
def _(patch: pytest.MonkeyPatch) -> None:
    no_answer_means_done(patch)


@mutant("a manifest does not name the cuts that it holds", "replay")
def _(patch: pytest.MonkeyPatch) -> None:
    channel = part_writer._channel
    patch.setattr(part_writer, "_channel", lambda snapshot: replace(channel(snapshot), cut_id=None))


@mutant("a cut forgets what waits for room")
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Subtask, "cut", lambda subtask: subtask.operator.cut(()))


@mutant("a host has room for more rows, however many wait")
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ReservedInbox, "has_room", True)


@mutant("the reserve has no bound")
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Reserve, "size", 10**6)


@mutant("the driver feeds hosts that have no room")
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(driver.Driver, "_has_room", lambda one: True)


@mutant("a host restores more than it has room for and less than there is")
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ReservedInbox, "restore", lambda inbox, elements: None)


@mutant("a cut ends the calls that are under way")
def _(patch: pytest.MonkeyPatch) -> None:
    def may_go_on(fencing: Any, manifest: Any) -> bool:
        return bool(fencing._content == ("manifest", manifest.snapshot_id))

    patch.setattr(Fencing, "is_content_of", may_go_on)


@mutant("what leaves between two cuts is lost")
def _(patch: pytest.MonkeyPatch) -> None:
    leave_session = Host._leave_session

    def forget(one: Any) -> None:
        one.subtask.outbox._run, one.subtask.outbox._taken = [], one.subtask.outbox.outputs
        leave_session(one)

    patch.setattr(Host, "_leave_session", forget)


# What a sink refuses.


@mutant("a refused output has no dead letter")
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(_ShippedDelivery, "_keep", lambda *_: iter(()))


@mutant("a dead letter has the value of another output")
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Values, "at", lambda values, places: dict.fromkeys(places, values.values[0]))


@mutant("an epoch with a refused output is not written")
def _(patch: pytest.MonkeyPatch) -> None:
    without = Values.without
    patch.setattr(Values, "without", lambda values, places: None if places else without(values, places))


@mutant("outputs that a sink refuses are left out, whatever its policy says")
def _(patch: pytest.MonkeyPatch) -> None:
    written = SinkDelivery.written

    def skipping(delivery: Any, sink: Any, *args: Any) -> Any:
        sink.on_error = "skip"
        return written(delivery, sink, *args)

    patch.setattr(SinkDelivery, "written", skipping)


# Idempotency keys.


@mutant("a lineage is not kept", "kill driver")
def _(patch: pytest.MonkeyPatch) -> None:
    a_lineage_is_not_kept(patch)


@mutant("all operators have one lineage")
def _(patch: pytest.MonkeyPatch) -> None:
    all_have_one_lineage(patch)


@mutant("hosts name elements without a lineage")
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Identity, "key_of", lambda identity, element_id: element_id)


# Entries of lists and maps, and values that are made of others.


@mutant("a part has only one of the entries that a call has changed")
def _(patch: pytest.MonkeyPatch) -> None:
    put_entries = MemoryTable.put_entries

    def put_one(table: Any, key_group: int, key: Any, content: Any, changed: Iterable[Any], *, replaced: bool) -> None:
        put_entries(table, key_group, key, content, sorted(changed, key=repr)[:1], replaced=replaced)

    patch.setattr(MemoryTable, "put_entries", put_one)


@mutant("a part does not say that an entry is gone")
def _(patch: pytest.MonkeyPatch) -> None:
    a_removed_entry_is_not_noted(patch)


@mutant("a part does not say that a list or a map was replaced")
def _(patch: pytest.MonkeyPatch) -> None:
    put_entries = MemoryTable.put_entries
    patch.setattr(MemoryTable, "put_entries", lambda *args, replaced: put_entries(*args, replaced=False))


@mutant("a restore reads the entries of lists and maps without those of deltas")
def _(patch: pytest.MonkeyPatch) -> None:
    table = ArrowGroup.table

    def older(group: Any) -> Any:
        if group._descriptor.kind in ENTRY_KINDS:
            reader = group._reader
            group._reader = LayeredReader(KeyGroupRange(group.key_group, group.key_group), reader.layers[:1])
        return table(group)

    patch.setattr(ArrowGroup, "table", older)


@mutant("a restore adds to a reduced value what it has restored")
def _(patch: pytest.MonkeyPatch) -> None:
    a_reduced_value_counts_twice(patch)


@mutant("a restore lets entries live anew")
def _(patch: pytest.MonkeyPatch) -> None:
    values_live_anew(patch)


@mutant("a restore forgets state without a key")
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SubtaskRestore, "operator_state", lambda share, name: [])


@mutant("what calls change while a part is written is not in the next one")
def _(patch: pytest.MonkeyPatch) -> None:
    open_group = MemoryTable._open

    def unnoted(table: Any, key_group: int) -> Any:
        opened = open_group(table, key_group)
        if table.descriptor.kind in ENTRY_KINDS and key_group in table._layered:
            table._opened[key_group] = opened[0], {}
            return opened[0], None
        return opened

    patch.setattr(MemoryTable, "_open", unnoted)
