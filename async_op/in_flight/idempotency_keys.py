"""What an idempotency key is made of: a lineage, a step, and what names the element in it.

The form is a contract, because services store keys:

    <lineage>/<id>            the key of an element of an operator or a pipeline
    <lineage>/<step>/<id>     a step of a job

`<id>` is `<partition>@<position>` for an element of a job's source. Each later step appends `/<number of the output>`
to the id of its input. A timer has `event-timer-<timestamp>-<digest of the key>`. What is too long, or has other
characters than visible ASCII, becomes `#<digest>`: a key can be the value of an HTTP header.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Hashable
from dataclasses import dataclass
from urllib.parse import quote

from keygroups.codec import pack
from keygroups.state.timers import Timer
from snapshots.lineage import new_lineage

KEY_CHARACTERS_MAX = 255
"""Stripe and others refuse longer keys."""

_PARTITION_CHARACTERS_MAX = 144
_TAIL_CHARACTERS = 60
"""Of a longer name of a partition, a digest stays, and the end: the end of a path tells more than its beginning."""

_PLAIN = re.compile(r"[!\"$-~][!-~]*")
"""Visible ASCII; what begins with a # is a digest."""


@dataclass(frozen=True, slots=True)
class Identity:
    """What all idempotency keys of an operator have in common.

    Attributes
    ----------
    lineage : str
        What no other operator or job has.
    step : str or None
        The step of the job; None for an operator that is no step.
    is_named_by_caller : bool
        Whether the ids of elements are keys themselves, because the caller of an `AsyncWaitOperator` has made them.
    """

    lineage: str
    step: str | None = None
    is_named_by_caller: bool = False

    @classmethod
    def of_run(cls, lineage: str | None) -> Identity:
        """Return the identity of an operator whose caller names its elements; it goes on with a lineage, if given."""
        return cls(new_lineage() if lineage is None else lineage, is_named_by_caller=True)

    def key_of(self, element_id: str) -> str:
        """Return the idempotency key of an element.

        Examples
        --------
        >>> Identity("payments", "charge").key_of("orders/0@17")
        'payments/charge/orders/0@17'
        """
        if self.is_named_by_caller:
            return element_id
        prefix = f"{self.lineage}/" if self.step is None else f"{self.lineage}/{self.step}/"
        if len(prefix) + len(element_id) <= KEY_CHARACTERS_MAX and _PLAIN.fullmatch(element_id):
            return prefix + element_id
        return f"{prefix}#{_digest(element_id)}"

    def timer_id(self, timer: Timer, key: Hashable) -> str:
        """Return the id of a timer of a key: among ids that a caller has made, only the lineage makes it unique."""
        own = timer_id(timer, key)
        return f"{self.lineage}/{own}" if self.is_named_by_caller else own


def timer_id(timer: Timer, key: Hashable) -> str:
    """Return what is the same whenever a timer fires, and what no other timer of its step has."""
    digest = hashlib.blake2b(pack(key, "the key of a timer"), digest_size=16).hexdigest()
    return f"{'event' if timer.event_time else 'processing'}-timer-{timer.timestamp}-{digest}"


def partition_text(name: str) -> str:
    """Return the part of ids that stands for a partition, from its full name: short, visible ASCII and without an @.

    Examples
    --------
    >>> partition_text("orders/0"), partition_text("/data/new orders@home.csv")
    ('orders/0', '/data/new%20orders%40home.csv')
    """
    text = quote(name, safe="/:=,+&!()", errors="surrogatepass").replace("~", "%7E")
    if len(text) <= _PARTITION_CHARACTERS_MAX:
        return text
    return f"~{_digest(name)}~{text[-_TAIL_CHARACTERS:]}"


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=16).hexdigest()
