"""Decides when the function is called for each entry."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from async_op.calls.batch_filling import Batching
from async_op.calls.completion import Completion
from async_op.calls.state_loading import Loading
from async_op.calls.workers import Workers
from async_op.in_flight.entries import Block, Entry, is_timer
from async_op.in_flight.key_order import KeyGate
from async_op.timers.backoff import Backoff
from async_op.timers.deadlines import Deadlines


class Dispatch:
    """Has the call for an entry made once nothing holds it back: a busy key, unloaded state, a backoff, or a batch.

    Only the thread of the event loop may call it.

    Parameters
    ----------
    gate : KeyGate or None
        Runs the entries of one key one at a time.
    loading : Loading or None
        Holds back entries whose state is not in memory yet.
    backoff : Backoff
        Holds back entries until their next attempt.
    deadlines : Deadlines
        Watches when entries expire.
    batching : Batching or None
        Makes the calls of a batch function; None for other functions.
    workers : Workers
        Make all other calls.
    completion : Completion
        Has the outputs that need no call.

    Attributes
    ----------
    timeouts : int
        How many entries have expired.
    calls_at_once : bool
        Whether any worker may make the call for a new entry at once: no entry needs a check before or after its call.
    """

    __slots__ = (
        "_backoff",
        "_batching",
        "_completion",
        "_deadlines",
        "_gate",
        "_is_direct",
        "_loading",
        "_stopped",
        "calls_at_once",
        "timeouts",
        "workers",
    )

    def __init__(
        self,
        gate: KeyGate | None,
        loading: Loading | None,
        backoff: Backoff,
        deadlines: Deadlines,
        batching: Batching | None,
        workers: Workers,
        completion: Completion,
    ) -> None:
        self._gate = gate
        self._loading = loading
        self._backoff = backoff
        self._deadlines = deadlines
        self._batching = batching
        self.workers = workers
        self._completion = completion
        self._is_direct = loading is None and batching is None and not completion.may_need_no_call
        self.calls_at_once = self._is_direct and gate is None
        self._stopped = False
        self.timeouts = 0

    def start(self, entries: Iterable[Entry]) -> None:
        """Have the calls of new entries made as soon as nothing holds them back."""
        if self._gate is not None:
            entries = self._gate.enter(entries)
        if self._is_direct:
            self.workers.add(entries)
        else:
            for entry in entries:
                self.ready(entry)

    @property
    def makes_batches(self) -> bool:
        """Whether elements are called for in batches."""
        return self._batching is not None

    @property
    def quickest_start(self) -> Callable[[Iterable[Entry]], None]:
        """What does the same as `start`, without a step that such entries do not need."""
        return self.workers.add if self.calls_at_once else self.start

    def start_after(self, entry: Entry, delay: float) -> None:
        """Have the call of a restored entry made once its backoff has passed."""
        if self._gate is None or self._gate.enter([entry]):
            self._backoff.add(entry, delay)

    def restore_deadlines(self, entries: Iterable[Entry]) -> None:
        """Watch the deadlines of restored entries, which may be in any order."""
        self._deadlines.restore(entries)

    @property
    def is_loaded(self) -> bool:
        """Whether all restored state is in memory."""
        return self._loading is None or self._loading.is_done

    def ready(self, entry: Entry) -> None:
        """Have the call of an entry made that holds its key, once its state is in memory, unless it needs no call."""
        if self._stopped or (self._loading is not None and self._loading.holds(entry)):
            return
        outputs = self._completion.known_outputs(entry)
        if outputs is None:
            self.call(entry)
        else:
            self._completion.finish(entry, outputs)

    def call(self, entry: Entry) -> None:
        """Have the call of an entry made whose state is in memory."""
        if self._stopped:
            return
        if self._batching is None or entry.expired or is_timer(entry):
            self.workers.add((entry,))
        else:
            self._batching.add(entry)

    def expire(self, entry: Entry | Block) -> None:
        """Ask for a fallback in place of the call: at once if the call runs or awaits a retry, else in its turn."""
        if isinstance(entry, Block):
            assert self._batching is not None, "only batch functions have blocks"
            self._batching.split(entry)
            return
        self.timeouts += 1
        entry.expired = True
        if entry.invocation is not None:
            self._interrupt(entry)
            return
        entry.attempt -= 1  # the one that was due is never made
        if entry.due is not None:
            self._backoff.release(entry)
        elif self._batching is not None and self._batching.remove(entry):
            self.workers.add((entry,))

    def flush(self) -> None:
        """Make the calls for batches that are not full."""
        if self._batching is not None:
            self._batching.flush()

    def finish(self, hurry: bool) -> None:
        """Handle the end of the input; with `hurry`, make the last attempts now and treat all outcomes as final."""
        if hurry:
            self._completion.take_all_as_final()
            self._backoff.release_all()
        self.flush()

    def stop(self) -> None:
        """Begin no more calls."""
        self._stopped = True
        self._deadlines.close()
        self._backoff.close()
        self.workers.stop()
        if self._batching is not None:
            self._batching.stop()
        if self._loading is not None:
            self._loading.stop()

    def _interrupt(self, entry: Entry) -> None:
        assert entry.invocation is not None, "only a running call can be interrupted"
        entry.invocation.abandon()
        call, entry.call = entry.call, None
        if call is not None:
            call.interrupt()
        self.workers.add_first(entry)
