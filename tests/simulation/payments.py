"""A service that honours idempotency keys; operators, steps and jobs of a simulation share it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable


class Payments:
    """Pays once for each idempotency key, and answers further calls with what it did at the first.

    Attributes
    ----------
    paid : dict of str to hashable
        What was paid for under each key.
    calls : Counter of str
        How often it was called with each key.
    mistakes : list of str
        The calls that were answered with another element's result.
    """

    def __init__(self) -> None:
        self.paid: dict[str, Hashable] = {}
        self.calls: Counter[str] = Counter()
        self.mistakes: list[str] = []

    def pay(self, key: str, identity: Hashable) -> Hashable:
        """Return for what was paid under a key: for this element, unless another one has used its key."""
        self.calls[key] += 1
        found = self.paid.setdefault(key, identity)
        if found != identity:
            self.mistakes.append(f"the call for {identity} was answered with the result of {found}: both used {key}")
        return found

    def check(self, expected: Iterable[Hashable]) -> None:
        """Object if a call got another's result, or if an element was not paid for exactly once."""
        self.check_answers()
        paid = Counter(self.paid.values())
        wrong = Counter(expected)
        wrong.subtract(paid)
        unpaid = [identity for identity, count in wrong.items() if count > 0]
        too_often = [identity for identity, count in wrong.items() if count < 0]
        assert not unpaid, f"never paid for: {unpaid}"
        assert not too_often, f"paid for again, under another key: {too_often}"

    def check_answers(self) -> None:
        """Object if a call got another's result."""
        assert not self.mistakes, self.mistakes[0]
