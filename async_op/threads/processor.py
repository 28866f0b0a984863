"""The loop of a thread that alternates between its own work and mail from others (Flink's mailbox processor)."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from types import MappingProxyType

from async_op.errors import MailboxClosed
from async_op.threads.mailbox import MIN_PRIORITY, Mail, Mailbox, MailboxState
from async_op.threads.wait_strategies import WaitSituation, WaitStrategies


@dataclass(frozen=True, slots=True)
class MailboxStatistics:
    """The counters of a processor, at one moment.

    Attributes
    ----------
    mails : int
        How many mails have run.
    default_actions : int
        How often the default action has run.
    waited_seconds : mapping of WaitSituation to float
        Time spent waiting for mail, by situation.
    """

    mails: int
    default_actions: int
    waited_seconds: MappingProxyType[WaitSituation, float]


class Suspension:
    """A suspension of the default action. Any thread may end it, even more than once."""

    __slots__ = ("_end", "situation")

    def __init__(self, situation: WaitSituation, end: Callable[[Suspension], None]) -> None:
        self.situation = situation
        self._end = end

    def resume(self) -> None:
        """Let the default action run again. Has no effect on later suspensions, or after the processor was closed."""
        self._end(self)


class MailboxExecutor:
    """Submits mail of one priority. Any thread may use `execute`; the rest is for the owner's thread only."""

    __slots__ = ("_priority", "_processor")

    def __init__(self, processor: MailboxProcessor, priority: int) -> None:
        self._processor = processor
        self._priority = priority

    def execute(
        self,
        run: Callable[[], object],
        description: str = "mail",
        *,
        urgent: bool = False,
        deferrable: bool = False,
        cancel: Callable[[], object] | None = None,
    ) -> None:
        """Have `run` called by the owner's thread.

        Raises
        ------
        MailboxClosed
            The processor accepts no more mail.
        """
        mail = Mail(run, self._priority, description, urgent=urgent, deferrable=deferrable, cancel=cancel)
        self._processor.mailbox.put(mail)

    def run_one(self) -> None:
        """Wait for a mail of at least this priority and run it, in the middle of an action (Flink's yield)."""
        self._processor.run_mail(self._processor.mailbox.take(self._priority))

    def try_run_one(self) -> bool:
        """Run one mail of at least this priority if there is any; returns whether there was."""
        mail = self._processor.mailbox.try_take(self._priority)
        if mail is not None:
            self._processor.run_mail(mail)
        return mail is not None

    def is_idle(self) -> bool:
        """Return whether the default action is suspended and there is no mail."""
        processor = self._processor
        return processor.suspended and not processor.mailbox.has_mail() and processor.mailbox.state is MailboxState.OPEN


class MailboxProcessor:
    """Runs mail and then its default action, over and over. The thread that calls `run` or `step` is the owner.

    Mail that arrives while a batch runs waits for the next batch, so mail that submits more mail cannot starve the
    default action. An error of a mail or of the default action is raised by `run` or `step`.

    Parameters
    ----------
    default_action : callable
        Called with the processor; does one small step of the owner's own work.
    strategies : WaitStrategies
        How to wait for mail while the default action is suspended.
    """

    def __init__(
        self, default_action: Callable[[MailboxProcessor], object], strategies: WaitStrategies | None = None
    ) -> None:
        self.mailbox = Mailbox()
        self._default_action = default_action
        self._strategies = strategies or WaitStrategies()
        self._suspension: Suspension | None = None
        self._paused = self._completed = False
        self._mails = self._default_actions = 0
        self._waited = dict.fromkeys(WaitSituation, 0.0)

    @property
    def suspended(self) -> bool:
        """Whether the default action is suspended."""
        return self._suspension is not None

    def executor(self, priority: int = 0) -> MailboxExecutor:
        """Return an executor that submits mail of a priority."""
        return MailboxExecutor(self, priority)

    def run(self) -> None:
        """Run until `complete` or `pause` is called."""
        self._paused = False
        while self.step():
            pass

    def step(self) -> bool:
        """Run the available mail, then the default action once; returns whether there may be a next step."""
        if self._completed:
            return False
        self._run_batch()
        while self.suspended and not self._stopped:
            self._wait()
            self._run_batch()
        if not self._stopped:
            self._default_actions += 1
            self._default_action(self)
        return not self._stopped

    def suspend_default_action(self, situation: WaitSituation) -> Suspension:
        """Run only mail until the returned suspension ends. Only the owner's thread may call it."""
        if self.suspended:
            raise RuntimeError("the default action is suspended already")
        self._suspension = Suspension(situation, lambda ended: self._control(lambda: self._resume(ended)))
        return self._suspension

    def count_wait(self, situation: WaitSituation, seconds: float) -> None:
        """Add time that the default action itself spent waiting."""
        self._waited[situation] += seconds

    def pause(self) -> None:
        """Make `run` return after the current step; a later `run` continues. Any thread may call it."""
        self._control(self._pause)

    def complete(self) -> None:
        """End the loop for good. Any thread may call it, even after the end."""
        self._control(self._complete)

    def report(self, error: BaseException) -> None:
        """Make the loop raise an error. Any thread may call it."""

        def fail() -> None:
            raise error

        self._control(fail)

    def prepare_close(self) -> None:
        """Accept no more mail; existing mail can still run. Any thread may call it."""
        self.mailbox.quiesce()

    def drain(self) -> None:
        """Run all remaining mail."""
        for mail in self.mailbox.drain():
            self.run_mail(mail)

    def close(self) -> None:
        """Accept and run no more mail. Cancels the remaining mail, and raises the first error of a cancellation."""
        errors = []
        for mail in self.mailbox.close():
            try:
                if mail.cancel is not None:
                    mail.cancel()
            except Exception as error:  # noqa: BLE001 - every mail is cancelled, whatever the others raise
                errors.append(error)
        if errors:
            raise errors[0]

    def run_mail(self, mail: Mail) -> None:
        """Run one mail in the owner's thread."""
        self._mails += 1
        mail.run()

    def statistics(self) -> MailboxStatistics:
        """Return the current counters."""
        return MailboxStatistics(self._mails, self._default_actions, MappingProxyType(dict(self._waited)))

    @property
    def _stopped(self) -> bool:
        return self._completed or self._paused

    def _run_batch(self) -> None:
        if self.mailbox.create_batch():
            while not self._stopped and (mail := self.mailbox.try_take_from_batch()) is not None:
                self.run_mail(mail)

    def _wait(self) -> None:
        assert self._suspension is not None, "the loop waits only while suspended"
        situation = self._suspension.situation
        strategy = self._strategies.of(situation)
        started, idle_count = time.monotonic(), 0
        while not self.mailbox.has_mail():
            if self.mailbox.state is not MailboxState.OPEN:
                raise MailboxClosed(self.mailbox.state.value)
            idle_count = strategy.idle(idle_count, self.mailbox.arrival)
        self._waited[situation] += time.monotonic() - started

    def _control(self, run: Callable[[], object]) -> None:
        try:
            self.mailbox.put(Mail(run, MIN_PRIORITY, "control", urgent=True))
        except MailboxClosed:
            return

    def _resume(self, ended: Suspension) -> None:
        if self._suspension is ended:
            self._suspension = None

    def _pause(self) -> None:
        self._paused = True

    def _complete(self) -> None:
        self._completed = True
