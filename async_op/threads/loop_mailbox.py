"""A mailbox whose owner is an event loop: any thread may have the loop do something."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from async_op.clock import Clock
from async_op.statistics import Latency, LatencyHistogram
from async_op.threads.mailbox import Mail, Mailbox


class LoopMailbox:
    """Runs mail on an event loop; one wake-up of the loop is for all mail at hand.

    Any thread may call `put`. The rest is for the loop's thread, which also creates the object.

    Parameters
    ----------
    clock : Clock
        Measures how long mail waits. Every thread reads it.

    Attributes
    ----------
    mails : int
        How many mails have run.
    """

    def __init__(self, clock: Clock) -> None:
        self._loop = asyncio.get_running_loop()
        self._clock = clock
        self._mailbox = Mailbox(self._wake)
        self._woken_at = 0.0
        self._latency = LatencyHistogram()
        self.mails = 0

    def __len__(self) -> int:
        """Return how many mails wait."""
        return len(self._mailbox)

    @property
    def latency(self) -> Latency:
        """How long the first mail of each wake-up has waited."""
        return self._latency.freeze()

    def put(
        self, run: Callable[[], object], *, urgent: bool = False, cancel: Callable[[], object] | None = None
    ) -> bool:
        """Have the loop call `run`, with `urgent` before all other mail; `cancel` in its place after `close`.

        It returns False if the mailbox is closed and takes no mail.
        """
        return self._mailbox.put(Mail(run, urgent, cancel))

    def close(self) -> None:
        """Accept no more mail, and cancel what is left."""
        self._mailbox.close()

    def _wake(self) -> None:
        self._woken_at = self._clock.time()
        self._loop.call_soon_threadsafe(self._read)

    def _read(self) -> None:
        mailbox = self._mailbox
        self._latency.add(max(0.0, self._clock.time() - self._woken_at))
        mailbox.create_batch()
        try:
            while (mail := mailbox.take()) is not None:
                self.mails += 1
                mail.run()
        finally:
            # After an error; otherwise this mail would wait for the next one that is put.
            if mailbox.has_mail():
                self._wake()
