"""The rules of operator state and of jobs, each with a way to break it on purpose and with what notices that.

A mutant changes the code while it is tested. Those that lose or repeat something meet the simulation; the others meet
the test of their rule.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Any

import pytest

from async_op import Job
from async_op.connectors.files import content_identity as files
from async_op.connectors.source import Source
from async_op.epochs import delivery as common_delivery
from async_op.epochs.restarts import Restarts
from async_op.in_flight import idempotency_keys
from async_op.job import adapters, chain, channels, delivery, job, operators, outputs, positions, reading, routing, run
from async_op.operator import operator_states
from async_op.operator.back_pressure import BackPressure
from async_op.subtask.operator import ResidentOperator
from keygroups.state import operator_state
from snapshots import WriterFenced, lineage
from snapshots.commit import part_writer
from snapshots.format import operator_state as dealing
from snapshots.format import sink_notes
from snapshots.format.delivered import Delivered
from snapshots.restore.share import SubtaskRestore

Patch = pytest.MonkeyPatch

_numbers = itertools.count()
"""For ids that are made up: none comes twice, and no seed depends on luck."""


def _replaced(patch: Patch, owner: Any, name: str, made: Callable[[Any], Any]) -> None:
    """Replace a function by one that is made of it."""
    patch.setattr(owner, name, made(getattr(owner, name)))


# Cuts.


def without_what_is_between(patch: Patch) -> None:
    """A cut leaves out the elements between two steps."""
    _replaced(patch, operators.StepOperator, "cut", lambda cut: lambda self, waiting: cut(self, []))


def reversed_channels(patch: Patch) -> None:
    """A cut stores the elements between two steps in reverse."""
    _replaced(
        patch,
        operators.StepOperator,
        "cut",
        lambda cut: lambda self, waiting: cut(self, [*reversed(waiting)]),
    )


def positions_cut_earlier(patch: Patch) -> None:
    """The positions are cut some turns of the loop before the steps."""

    def made(cut_now: Any) -> Any:
        async def mutant(self: run.Run, **options: Any) -> int:
            parts = run.Run._source_parts(self)
            self._source_parts = lambda: parts  # type: ignore[method-assign]
            return int(await cut_now(self, **options))

        return mutant

    _replaced(patch, run.Run, "_cut_now", made)


def last_step_cut_earlier(patch: Patch) -> None:
    """The last step is cut some turns of the loop before the others."""

    def made(cut_now: Any) -> Any:
        async def mutant(self: run.Run, **options: Any) -> int:
            cut, last = self._chain.cut, self._chain._names[-1]
            early = [part for part in cut(is_final=False)[0] if part[0] == last]

            def late(*, is_final: bool) -> Any:
                parts, counted = cut(is_final=is_final)
                return [*(part for part in parts if part[0] != last), *early], counted

            self._chain.cut = late  # type: ignore[method-assign]
            try:
                return int(await cut_now(self, **options))
            finally:
                del self._chain.cut

        return mutant

    _replaced(patch, run.Run, "_cut_now", made)


def a_cut_that_waits_for_calls(patch: Patch) -> None:
    """A cut waits until nothing is in flight."""

    def made(cut_now: Any) -> Any:
        async def mutant(self: run.Run, **options: Any) -> int:
            await self._chain.drain(is_final=False)
            return int(await cut_now(self, **options))

        return mutant

    _replaced(patch, run.Run, "_cut_now", made)


def calls_go_on_after_a_final_cut(patch: Patch) -> None:
    """The calls are cancelled only a second after a final cut."""

    def stop(self: operators.StepOperator) -> None:
        self._lifecycle.silence()
        ResidentOperator.stop(self)

    def made(end_calls: Any) -> Any:
        async def mutant(self: chain.Chain) -> None:
            await asyncio.sleep(1)
            await end_calls(self)

        return mutant

    patch.setattr(operators.StepOperator, "stop", stop)
    _replaced(patch, chain.Chain, "end_calls", made)


def outputs_leave_after_a_final_cut(patch: Patch) -> None:
    """Nothing is stopped in the turn of a final cut."""
    patch.setattr(operators.StepOperator, "stop", lambda self: None)


def opened_first_to_last(patch: Patch) -> None:
    """Steps are opened first to last."""

    async def mutant(self: chain.Chain, snapshot: Any) -> None:
        for number in range(len(self._names)):
            await self.open_step(number, snapshot)

    patch.setattr(chain.Chain, "open", mutant)


def unknown_steps_are_ignored(patch: Patch) -> None:
    """The steps of a snapshot that a job does not have are ignored."""
    patch.setattr(job, "check_steps", lambda latest, names: None)


# Routes.


def another_key_group(patch: Patch) -> None:
    """Elements are routed by another key group than the operators use."""
    _replaced(patch, routing, "key_hasher", lambda hasher: lambda name: lambda key: hasher(name)(key) + 1)


def without_a_key_to_the_next_subtask(patch: Patch) -> None:
    """A step without a key forwards to the next subtask."""

    def made(reached_from: Any) -> Any:
        def mutant(self: routing.Route, subtask: int) -> range:
            return reached_from(self, subtask if self._key_by is not None else (subtask + 1) % self._parallelism)

        return mutant

    _replaced(patch, routing.Route, "reached_from", made)


# Positions and ids.


def positions_run_ahead(patch: Patch) -> None:
    """A position advances before its element is handed on."""

    def made(hand_on: Any) -> Any:
        async def mutant(self: reading.Reading, partition: Any, items: Any) -> None:
            partition.position = items[-1][2]
            await hand_on(self, partition, items)

        return mutant

    _replaced(patch, reading.Reading, "_hand_on", made)


def positions_stay_where_they_were(patch: Patch) -> None:
    """A rescale does not redistribute the positions."""

    def mutant(self: positions.Positions, parallelism: int) -> None:
        self._parallelism = parallelism

    patch.setattr(positions.Positions, "deal_out", mutant)


def all_partitions_to_the_first_subtask(patch: Patch) -> None:
    """New partitions all go to the first subtask."""
    patch.setattr(positions.Positions, "_counts", lambda self: [-(10**9), *[0] * (self._parallelism - 1)])


def one_look_for_partitions(patch: Patch) -> None:
    """The source is asked for its partitions only once."""
    patch.setattr(Source, "look_interval", 1e9)


def new_ids_of_elements(patch: Patch) -> None:
    """The ids of the source's elements are made up anew."""
    patch.setattr(positions.Partition, "element_id", lambda self, position: f"made up {next(_numbers)}")


def new_ids_of_later_steps(patch: Patch) -> None:
    """The ids of the elements of later steps are made up anew."""
    patch.setattr(operators, "output_id", lambda parent, number: f"made up {next(_numbers)}")


def ids_without_the_number_of_the_output(patch: Patch) -> None:
    """All outputs of an element have the same id."""
    _replaced(patch, operators, "output_id", lambda output_id: lambda parent, number: output_id(parent, 0))


def jobs_share_a_lineage(patch: Patch) -> None:
    """All jobs have the same lineage."""
    patch.setattr(lineage, "new_lineage", lambda: "0" * 24)


def a_new_lineage_at_each_start(patch: Patch) -> None:
    """Until its first commit, a job has another lineage at each start."""
    patch.setattr(lineage, "_minted", lambda folder: lineage.new_lineage())


def partitions_share_keys(patch: Patch) -> None:
    """A key does not name the partition."""
    patch.setattr(positions.Partition, "element_id", lambda self, position: f"@{position}")


def steps_share_keys(patch: Patch) -> None:
    """A key does not name the step."""
    patch.setattr(idempotency_keys.Identity, "key_of", lambda self, element_id: f"{self.lineage}/{element_id}")


def kinds_of_timers_share_keys(patch: Patch) -> None:
    """A timer of event time and one of processing time have the same key."""
    _replaced(
        patch, idempotency_keys, "timer_id", lambda name: lambda timer, key: name(timer._replace(event_time=True), key)
    )


# Replaced inputs.


def contents_are_not_stored(patch: Patch) -> None:
    """A snapshot does not have what the source says of the content."""
    _replaced(
        patch,
        positions.Positions,
        "reached",
        lambda reached: lambda self, partition, position, content=None: reached(self, partition, position),
    )


def contents_come_late(patch: Patch) -> None:
    """A snapshot has the content of a partition only when its first elements have been handed on."""
    _replaced(
        patch,
        positions.Positions,
        "reached",
        lambda reached: (
            lambda self, partition, position, content=None: reached(
                self, partition, position, content if position else None
            )
        ),
    )


def contents_are_not_restored(patch: Patch) -> None:
    """A restart forgets the contents of the partitions."""

    def made(restore: Any) -> Any:
        def mutant(self: positions.Positions, snapshot: Any, parallelism: int) -> None:
            restore(self, snapshot, parallelism)
            for partition in self.partitions.values():
                partition.content = None

        return mutant

    _replaced(patch, positions.Positions, "restore", made)


def the_source_is_not_told(patch: Patch) -> None:
    """The source is not told of its stored positions."""

    async def mutant(self: run.Run) -> None:
        return

    patch.setattr(run.Run, "_restore_source", mutant)


def iterables_are_not_compared(patch: Patch) -> None:
    """The elements of an iterable are skipped without a look at them."""

    def made(skip: Any) -> Any:
        def mutant(self: adapters.IterableSource, run: list[Any]) -> None:
            self._stored = None
            skip(self, run)

        return mutant

    _replaced(patch, adapters.IterableSource, "_skip", made)


def files_are_not_compared(patch: Patch) -> None:
    """A file is read on without a look at what was read."""
    patch.setattr(files.FileIdentity, "fits", lambda self, content: True)


# Refused outputs.


def refusals_are_not_noted(patch: Patch) -> None:
    """What the sink has refused is forgotten in a crash."""
    patch.setattr(sink_notes.SinkNotes, "note_refused", lambda self, epoch, outputs: None)


def notes_of_another_epoch_count(patch: Patch) -> None:
    """What the sink has refused of one epoch is left out of the next one."""

    def mutant(self: sink_notes.SinkNotes, epoch: Any) -> Any:
        found = self._read().get("refused", {}).get("outputs", {})
        return {int(index): sink_notes.RefusedOutput(**output) for index, output in found.items()}

    patch.setattr(sink_notes.SinkNotes, "refused", mutant)


def an_index_counts_what_is_left(patch: Patch) -> None:
    """Where some outputs are left out, the index of the next one that is refused means another output."""
    patch.setattr(common_delivery, "_place", lambda index, missing: index)


def refused_outputs_have_no_dead_letters(patch: Patch) -> None:
    """Outputs that the sink refuses are left out of the dead letters."""
    patch.setattr(common_delivery.RefusedOutputs, "letters", lambda self, content: [])


def a_refusal_loses_the_epoch(patch: Patch) -> None:
    """Where the sink refuses one output, the rest of the epoch is not written."""
    patch.setattr(common_delivery.Values, "without", lambda self, places: None if places else self)


# Outputs.


def delivered_before_the_commit(patch: Patch) -> None:
    """The outputs of an epoch are delivered before its commit."""

    def made(source_parts: Any) -> Any:
        def mutant(self: run.Run) -> Any:
            epoch = self._collector.epoch
            if epoch.count:
                number = self._version + 1
                early = delivery.CommittedEpoch(
                    identity=Delivered(number, "early"), tables=epoch.tables, close=lambda: None
                )
                self._delivery.add(early)
            return source_parts(self)

        return mutant

    _replaced(patch, run.Run, "_source_parts", made)


def outputs_are_not_stored(patch: Patch) -> None:
    """A snapshot does not have the outputs of its epoch."""
    patch.setattr(outputs.EpochOutputs, "table", lambda self: outputs.OUTPUT_SCHEMA.empty_table())


def undelivered_epochs_are_forgotten(patch: Patch) -> None:
    """A restart does not deliver the epochs that the sink has not had."""
    patch.setattr(run, "stored_epochs", lambda snapshot: [])


def marks_are_ignored(patch: Patch) -> None:
    """A delivered epoch is not marked."""
    patch.setattr(common_delivery, "mark", lambda folder, epoch: None)


def marks_come_first(patch: Patch) -> None:
    """An epoch is marked before the sink has had it."""

    def made(deliver: Any) -> Any:
        def mutant(self: delivery.JobDelivery, epoch: delivery.CommittedEpoch) -> Any:
            yield from self.marked(epoch.identity)
            yield from deliver(self, epoch)

        return mutant

    _replaced(patch, delivery.JobDelivery, "_deliver", made)


def cuts_wait_for_the_sink(patch: Patch) -> None:
    """A cut waits until the sink has had its outputs."""

    def made(cut_now: Any) -> Any:
        async def mutant(self: run.Run, **options: Any) -> int:
            version = int(await cut_now(self, **options))
            await self._delivery.all_delivered()
            return version

        return mutant

    _replaced(patch, run.Run, "_cut_now", made)


def no_pause(patch: Patch) -> None:
    """However many epochs wait for the sink, the source goes on."""
    patch.setattr(run, "UNDELIVERED_MAX", 1_000_000)


def timers_go_on(patch: Patch) -> None:
    """However many epochs wait for the sink, timers fire."""
    patch.setattr(chain.Chain, "hold_timers", lambda self, are_held: None)


def channels_without_a_bound(patch: Patch) -> None:
    """The channels between steps are never full."""
    patch.setattr(channels.Inlet, "room", property(lambda self: 1_000_000))


def spilled_outputs_come_last(patch: Patch) -> None:
    """The outputs on disk come after those in memory."""
    _replaced(patch, outputs.EpochOutputs, "tables", lambda tables: lambda self: iter([*tables(self)][::-1]))


def dead_letters_twice(patch: Patch) -> None:
    """A dead letter comes twice."""

    def made(take_letter: Any) -> Any:
        def mutant(self: outputs.Collector, letter: Any) -> None:
            take_letter(self, letter)
            take_letter(self, letter)

        return mutant

    _replaced(patch, outputs.Collector, "take_letter", made)


def dead_letters_are_dropped(patch: Patch) -> None:
    """Dead letters go nowhere."""
    patch.setattr(outputs.Collector, "take_letter", lambda self, letter: None)


# Watermarks.


def the_largest_watermark(patch: Patch) -> None:
    """The watermark of a step is the largest of its channels'."""
    patch.setattr(channels.ChannelWatermarks, "current", lambda self: self._largest)


def idle_subtasks_hold_back(patch: Patch) -> None:
    """A subtask without partitions holds back the watermark of the steps after it."""
    patch.setattr(channels.Inlet, "set_idle", lambda self, channel, is_idle: None)


def the_final_watermark_is_stored(patch: Patch) -> None:
    """A snapshot has the final watermark of a bounded source."""
    patch.setattr(operators.StepOperator, "cut", ResidentOperator.cut)


def watermarks_of_partitions_are_lost(patch: Patch) -> None:
    """A restart forgets the watermarks of the partitions."""

    def made(restore: Any) -> Any:
        def mutant(self: positions.Positions, snapshot: Any, parallelism: int) -> None:
            restore(self, snapshot, parallelism)
            for partition in self.partitions.values():
                partition.watermark = None

        return mutant

    _replaced(patch, positions.Positions, "restore", made)


# Operator state.


def dealt_twice(patch: Patch) -> None:
    """Each subtask gets all items of a split state."""
    patch.setattr(
        dealing,
        "split",
        lambda states, count: {name: [[item for run in old for item in run]] * count for name, old in states.items()},
    )


def union_multiplies(patch: Patch) -> None:
    """Each subtask keeps all items of a union state, and not its run of them."""
    _replaced(
        patch,
        operator_states,
        "OperatorStates",
        lambda states: lambda declared=(), items=None, own=None: states(declared, items) if items else states(declared),
    )


def fenced_runs_restart(patch: Patch) -> None:
    """A run that another one has taken over from restarts."""
    patch.setattr(WriterFenced, "is_permanent", False)


def restarts_have_no_bound(patch: Patch) -> None:
    """Restarts go on beyond `max_restarts`."""
    patch.setattr(Restarts, "began", lambda self: setattr(self, "_in_a_row", 0))


def stops_wait_for_the_restart(patch: Patch) -> None:
    """A stop does not end the pause before a restart."""
    hear = Job._hear

    def no_hurry(self: Any, call: Any, *arguments: Any) -> None:
        if call != self._hurry.set:
            hear(self, call, *arguments)

    patch.setattr(Job, "_hear", no_hurry)


def a_full_batch_leaves_the_rest(patch: Patch) -> None:
    """A batch function takes the elements that fill a batch, and the others that came with them are gone."""

    def take_once(self: BackPressure, source: Any) -> None:
        if (room := self._room()) > 0:
            self._intake.take(source, room)

    patch.setattr(BackPressure, "take_some", take_once)


def restarts_forget_the_parallelism(patch: Patch) -> None:
    """A restart has the parallelism of the constructor."""
    patch.setattr(Job, "_starting_parallelism", lambda self, snapshot: self._parallelism or 1)


def maps_are_written_anywhere(patch: Patch) -> None:
    """A broadcast state is written outside of `open`."""
    patch.setattr(operator_state.OperatorMapHandle, "_check_open", lambda self: None)


def unequal_copies_are_committed(patch: Patch) -> None:
    """Copies of a broadcast state that differ are committed."""
    patch.setattr(part_writer, "digest_of", lambda state: "")


def undeclared_states_are_dropped(patch: Patch) -> None:
    """A state that the function does not declare is dropped in a restore."""
    patch.setattr(operator_states, "check_operator_states", lambda manifest, declared, uri: None)


def writes_wait_for_a_snapshot(patch: Patch) -> None:
    """A write counts only from the next complete snapshot on."""
    patch.setattr(operator_state.OperatorListHandle, "cut", lambda self: self._complete)


def states_are_not_restored(patch: Patch) -> None:
    """A restore gives a function no items."""
    patch.setattr(SubtaskRestore, "operator_state", lambda self, name: [])
