"""How a committed epoch gets into a sink, of a job or of a pipeline: attempts, refused outputs, notes and the mark.

A job awaits its sink, and must not block its event loop. A pipeline's sink blocks the thread that Spark has described
its jobs for. So what happens, and in which order, is written here once, as generators of steps. `job.delivery` and
`spark.epoch.delivery` take the steps, each in its way. ARCHITECTURE.md draws when ("The order of a commit").
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from inspect import isawaitable
from itertools import chain
from operator import index
from typing import Any, ClassVar, NamedTuple, SupportsIndex, TypeAlias, TypeVar

from async_op.connectors.conformance import misbehaved, to_await
from async_op.connectors.errors import SinkUnavailable, TargetAhead, UnwritableValue
from async_op.connectors.retrying import Attempts
from async_op.connectors.sink import Sink
from async_op.dead_letters import CUT_LENGTHS, DeadLetter, cut_row, row_of
from async_op.epochs.coordinator import Coordinator
from async_op.epochs.position import SinkEpochs
from keygroups.representation import counted
from keygroups.safe_text import add_note, errors_in
from snapshots.filesystem import Folder
from snapshots.format.delivered import Delivered, WrittenEpochs, mark_delivered
from snapshots.format.sink_notes import RefusedOutput, SinkNotes, target_digest

_T = TypeVar("_T")
_log = logging.getLogger(__package__)


class Ask(NamedTuple):
    """Ask a sink for something, with a text that says what; in a job, what the work returns is awaited."""

    work: Callable[[], Any]
    doing: str


class Note(NamedTuple):
    """Read or write what an operator remembers; the work blocks."""

    work: Callable[[], Any]


class Pause(NamedTuple):
    """Wait before the next attempt, unless a stop is in a hurry."""

    seconds: float


Steps: TypeAlias = Generator[Ask | Note | Pause, Any, _T]
"""What has to be done, one after the other. What a step gives, or its error, is sent back."""


class Values:
    """What a sink gets of an epoch: its outputs, or what is left of them.

    A sink may change what it gets: it may empty the list as it writes, or format a column in place. The next attempt
    needs the values as they were, or outputs would be lost in silence.

    Parameters
    ----------
    values : list
        The values.
    again : callable
        Returns them as they were; blocks.
    """

    def __init__(self, values: list[Any], again: Callable[[], list[Any]]) -> None:
        self.values = values
        self._again = again

    def renew(self) -> None:
        """Take the values as they were before a sink had them; blocks."""
        self.values = self._again()

    def write(self, sink: Any, epoch: int) -> Any:
        """Write them to a sink; returns what a job awaits."""
        return to_await(sink, "write", sink.write(self.values, epoch))

    def refused(self, sink: Any) -> Any:
        """Return the errors of what a sink would refuse, or what a job awaits for them."""
        return to_await(sink, "refused", sink.refused(self.values))

    def without(self, places: Collection[int]) -> Values | None:
        """Return what is left without these places; None if that is nothing."""
        if not places:
            return self if self.values else None
        left = self._left(places)
        return type(self)(left, lambda: self._renewed_without(places)) if left else None

    def at(self, places: Collection[int]) -> dict[int, Any]:
        """Return the values at these places."""
        return {place: self.values[place] for place in places}

    def has(self, place: object) -> bool:
        """Return whether there is a value at an index that a sink has named."""
        return isinstance(place, SupportsIndex) and 0 <= index(place) < len(self.values)

    def _left(self, places: Collection[int]) -> list[Any]:
        return [value for place, value in enumerate(self.values) if place not in places]

    def _renewed_without(self, places: Collection[int]) -> list[Any]:
        self.renew()
        return self._left(places)


class Letters(Values):
    """The dead letters of an epoch, as dicts of plain values. Each attempt gets copies of them."""

    def __init__(self, letters: list[dict[str, Any]]) -> None:
        super().__init__(letters, lambda: letters)

    def write(self, sink: Any, epoch: int) -> Any:
        """Write them to a sink; returns what a job awaits."""
        return to_await(sink, "write", sink.write(self.copies(), epoch))

    def without(self, places: Collection[int]) -> Letters | None:
        """Return what is left without these places; None if that is nothing."""
        left = self._left(places) if places else self.values
        return type(self)(left) if left else None

    def copies(self) -> list[dict[str, Any]]:
        """Return copies, which a sink may change."""
        return list(map(dict, self.values))


class SinkDelivery(ABC):
    """Delivers epochs of the operator in a folder to a sink and to one of dead letters, one epoch at a time.

    Parameters
    ----------
    coordinator : Coordinator
        Commits the epochs, in the folder where the operator remembers its sinks.
    lineage : str
        What tells the operator from others that write into the same targets.
    sink : Sink
        Gets the outputs.
    dead_letters : Sink or None
        Gets the dead letters.
    epochs : SinkEpochs
        Which epochs earlier runs have written, by the snapshot that this one starts from.
    """

    letters_come_first: ClassVar[bool]
    """Whether the dead letters of refused outputs are written before the rest, of which no more is refused then."""

    def __init__(
        self,
        coordinator: Coordinator,
        lineage: str,
        sink: Sink[Any],
        dead_letters: Sink[Any] | None,
        epochs: SinkEpochs,
    ) -> None:
        self._coordinator = coordinator
        self._folder = coordinator.store.folder
        self._lineage = lineage
        self._known = epochs.known
        self.written_epochs = dict(epochs.written)
        """What each of the two sinks has written, for the next snapshot; read by any thread."""
        self._notes = SinkNotes(self._folder)
        self._sink = sink
        self._dead_letters = dead_letters
        self.refused = 0
        """How many outputs and dead letters the sinks have refused."""

    @property
    @abstractmethod
    def is_hurried(self) -> bool:
        """Whether the next attempt is the last."""

    @abstractmethod
    def _keep(self, refused: RefusedOutputs, content: Values) -> Steps[None]:
        """See to it that refused outputs get into the dead letters, before the rest is written."""

    def expecting(self, sink: Sink[Any]) -> Steps[None]:
        """Tell one of the two sinks whose epochs it gets, and whether it has some already."""
        epochs = SinkEpochs(self._known, self.written_epochs)
        yield Note(lambda: expect(sink, self._role(sink), self._notes, self._lineage, epochs))

    def opened(self, sink: Sink[Any], opening: Callable[[], Any]) -> Steps[None]:
        """Open one of the two sinks by what `opening` returns."""
        yield from self.expecting(sink)
        yield from self._tried(sink, None, opening, f"opening {type(sink).__name__}", None)

    def written(
        self, sink: Sink[Any], epoch: Delivered, content: Values, noted: Mapping[int, RefusedOutput] | None = None
    ) -> Steps[RefusedOutputs]:
        """Write the content of an epoch to one of the two sinks, without what that refuses; returns what it refuses.

        What it has refused before, and was noted, is left out whether the sink would refuse it now or not.
        """
        refused = RefusedOutputs(sink, epoch, noted or {})
        cuts = _Cuts(content.values) if sink is self._dead_letters else None
        doing = f"writing epoch {epoch.epoch} to {type(sink).__name__}"
        while (left := content.without(refused.outputs)) is not None:
            try:
                yield from self._tried(sink, epoch, lambda: left.write(sink, epoch.epoch), doing, left)
                break
            except UnwritableValue as error:
                is_complete = self.letters_come_first and sink.on_error == "dead_letter" and refused.outputs
                is_final = sink.on_error == "fail" or is_complete
                if is_final and cuts is None:
                    raise
                failure = error
            yield Note(left.renew)
            found = yield from self._tried(sink, epoch, lambda: left.refused(sink), doing, left)
            errors = refused.placed(found, failure, left)
            if cuts is not None and cuts.shorten(errors):
                continue
            if is_final:
                raise failure
            refused.add(errors)
            if sink.on_error == "dead_letter":
                yield from self._keep(refused, content)
        self.refused += len(refused.outputs)
        if left is not None:
            yield Note(lambda: self._note_written(sink, epoch.epoch))
        return refused

    def marked(self, epoch: Delivered) -> Steps[None]:
        """Remember that the sinks have had an epoch. If that fails, a restart delivers it again."""
        yield Note(lambda: mark(self._folder, epoch, self.written_epochs))

    def _tried(
        self, sink: Sink[Any], epoch: Delivered | None, work: Callable[[], Any], doing: str, given: Values | None
    ) -> Steps[Any]:
        """Ask a sink for something until an attempt succeeds, or fails for good; `given` is what it gets."""
        attempts = _SinkAttempts(sink, None if epoch is None else epoch.epoch)
        while True:
            try:
                return (yield Ask(work, doing))
            except TargetAhead:
                # The later epochs may come from another run, and a run that was fenced must not take over again.
                yield Note(self._coordinator.check)
                raise
            except Exception as error:  # noqa: BLE001 - raised unless it may pass
                inside = (one for one in errors_in(error) if isinstance(one, UnwritableValue))
                delay = attempts.delay_after(next(inside, error), is_last=self.is_hurried)
            finally:
                if epoch is not None:  # also after an error: the epoch may be in the target all the same
                    sink.note_tried(epoch.epoch)
            yield Pause(delay)
            if given is not None:
                yield Note(given.renew)

    def _note_written(self, sink: Sink[Any], epoch: int) -> None:
        sink.newest_written = epoch
        self.written_epochs[self._role(sink)] = epoch, target_digest(repr(sink))
        try:
            self._notes.note_written(self._role(sink), repr(sink))
        except OSError as error:
            _log.warning("that %r has epochs of %s could not be noted: %s", sink, self._folder.uri, error)

    def _role(self, sink: Sink[Any]) -> str:
        return "outputs" if sink is self._sink else "dead_letters"


def expect(sink: Sink[Any], role: str, notes: SinkNotes, lineage: str, epochs: SinkEpochs) -> None:
    """Tell a sink whose epochs it gets, and which of them its target has; blocks.

    Parameters
    ----------
    sink : Sink
        The sink.
    role : {"outputs", "dead_letters"}
        What it gets.
    notes : SinkNotes
        What the operator remembers of its sinks.
    lineage : str
        What tells the operator from others that write into the same target.
    epochs : SinkEpochs
        What both sinks have had, by the newest snapshot.
    """
    sink.lineage = lineage
    sink.newest_known = epochs.known
    epoch, target = epochs.written.get(role, (None, None))
    is_same = target == target_digest(repr(sink))
    # A copy of a version has no notes.
    sink.was_written = notes.was_written(role, repr(sink)) or is_same
    sink.newest_written = epoch if is_same else None


def mark(folder: Folder, epoch: Delivered, written: WrittenEpochs) -> None:
    """Remember that the sink has had an epoch, and the epochs before it. If that fails, a restart delivers it again."""
    try:
        mark_delivered(folder, epoch, written)
    except OSError as error:
        _log.warning("epoch %d was delivered but not marked, a restart delivers it again: %s", epoch.epoch, error)


class _SinkAttempts(Attempts):
    """The attempts at opening a sink, or at writing an epoch to it."""

    def __init__(self, sink: Sink[Any], epoch: int | None) -> None:
        doing = f"opening {sink!r}" if epoch is None else f"writing epoch {epoch} to {sink!r}"
        super().__init__(sink.retry, doing)
        self._sink = sink
        self._epoch = epoch

    def may_pass(self, error: BaseException) -> bool:
        """Return whether the sink takes an error for a transient one."""
        found: object = self._sink.is_transient(error)  # type: ignore[arg-type]  # an exception of the sink
        if isawaitable(found):  # it would count as true
            raise misbehaved(self._sink, "is_transient()", found, "write it with `def`") from error
        return bool(found)

    def delay_after(self, error: Exception, *, is_last: bool = False) -> float:
        """Return the seconds until the next attempt, as `Attempts` does; an output that is refused learns its epoch."""
        if isinstance(error, UnwritableValue):
            error.epoch = self._epoch
        return super().delay_after(error, is_last=is_last)

    def unavailable(self, reason: str) -> SinkUnavailable:
        """Return the error that ends the attempts."""
        return SinkUnavailable(repr(self._sink), self._epoch, self.failed, reason)


class _Cuts:
    """Cuts dead letters that their sink refuses, such as one that is too long for a message of Kafka.

    A dead letter is the last place that an element has, so what was refused would otherwise end the job at every start.
    A cut depends on the letter only, so an epoch that comes again is the same.
    """

    def __init__(self, letters: list[Any]) -> None:
        self._letters = letters
        self._whole = list(letters)
        self._lengths: dict[int, int] = {}

    def shorten(self, errors: Iterable[UnwritableValue]) -> bool:
        """Cut the letters that are to blame; returns whether the sink has to be asked again."""
        places = [range(len(self._whole)) if error.index is None else (error.index,) for error in errors]
        return any([self._shorten(place) for place in chain.from_iterable(places)])  # noqa: C419 - all of them

    def _shorten(self, place: int) -> bool:
        whole = self._whole[place]
        for limit in CUT_LENGTHS:
            if limit < self._lengths.get(place, limit + 1) and (shorter := cut_row(whole, limit)) != whole:
                self._letters[place], self._lengths[place] = shorter, limit
                return True
        return False


class RefusedOutputs:
    """The outputs of an epoch that a sink has refused, by their place in the epoch; at first those that were noted."""

    def __init__(self, sink: Sink[Any], epoch: Delivered, noted: Mapping[int, RefusedOutput]) -> None:
        self._sink = sink
        self.epoch = epoch
        self.outputs = dict(noted)

    def placed(self, errors: Any, error: UnwritableValue, left: Values) -> list[UnwritableValue]:
        """Return the errors with their place in the epoch; they, and `error` of `write`, index what was left of it.

        An index of no output would be refused again and again, or name another output: that error is raised.
        """
        if not isinstance(errors, Sequence) or not all(isinstance(one, UnwritableValue) for one in errors):
            raise misbehaved(self._sink, "refused()", errors, "return a list of UnwritableValue, each with its index")
        found = [one for one in errors if one.index is not None] or [error]
        earlier = sorted(self.outputs)
        for one in found:
            if one.index is not None and not left.has(one.index):
                add_note(one, "its index names no output that `write` was called with; the first is 0")
                raise one
            one.index, one.epoch = None if one.index is None else _place(index(one.index), earlier), self.epoch.epoch
        return found

    def add(self, errors: Sequence[UnwritableValue]) -> None:
        """Add what a sink has refused; an error that names no output is raised."""
        for one in errors:
            if one.index is None:
                raise one
            self.outputs[one.index] = RefusedOutput(error_type=type(one).__name__, error_message=str(one))
        doing = "left out" if self._sink.on_error == "skip" else "given to the dead letters"
        said = "epoch %d: %r has refused %s, now %s; the first: %s"
        _log.warning(said, self.epoch.epoch, self._sink, counted(len(errors), "output"), doing, errors[0])

    def letters(self, content: Values) -> list[dict[str, Any]]:
        """Return the dead letters of the refused outputs."""
        values = content.at(self.outputs)
        return [self._letter(values[place], place, refused) for place, refused in sorted(self.outputs.items())]

    def _letter(self, value: Any, place: int, refused: RefusedOutput) -> dict[str, Any]:
        name = f"epoch-{self.epoch.epoch}-output-{place}"
        letter = DeadLetter(value=value, timestamp=None, key=None, idempotency_key=name, attempts=1, error=ValueError())
        said = {"error_type": refused.error_type, "error_message": refused.error_message}
        return row_of(letter, f"sink {type(self._sink).__name__}") | said


def _place(index: int, missing: Iterable[int]) -> int:
    """Return the place in the epoch of an output that has this index among those that were left."""
    for earlier in missing:
        if earlier <= index:
            index += 1
    return index
