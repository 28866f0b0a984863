"""Fencing: which claims on a host count, and whether its content is what the newest manifest names.

A driver or a task of an old attempt may still send messages. Each claim has a fence, and a host refuses those with an
older one.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

DRIVER = 2**63 - 1
"""The attempt of the driver in a fence: newer than every attempt of its tasks."""


class Fence(NamedTuple):
    """Orders the claims on a host: the greater fence is the newer one.

    The version belongs to the manifest that the claimant starts from. The attempt is Spark's task attempt id, which
    grows and is unique in its run; the attempt number is neither.
    """

    version: int
    attempt: int


Reason: TypeAlias = Literal["stale", "busy", "replace", "foreign"]
"""Why a host refuses a claim; see `Refused`."""


class NewestManifest(NamedTuple):
    """What the newest manifest says about one subtask.

    Attributes
    ----------
    snapshot_id : str or None
        The id of the manifest's snapshot; None if there is no snapshot yet.
    cut_id : str or None
        The cut that it names for the subtask's channel; None unless that has the same range and parallelism.
    """

    snapshot_id: str | None
    cut_id: str | None


Content: TypeAlias = tuple[Literal["manifest", "cut"], str | None] | None
"""What a host holds: exactly a manifest's content, exactly its last cut's, or (None) something in between."""

NO_FENCE = Fence(-1, -1)
"""Older than every claim."""


class Fencing:
    """Decides which claims and stops a host accepts. Only the thread of the event loop may call it.

    Parameters
    ----------
    generation : str
        The generation of the host.
    restored_from : str or None
        The id of the manifest that the host was restored from; None if it began without a snapshot.
    """

    def __init__(self, generation: str, restored_from: str | None) -> None:
        self.generation = generation
        self._newest = NO_FENCE
        self._content: Content = ("manifest", restored_from)

    def judge(self, generation: str, fence: Fence, manifest: NewestManifest, *, is_being_fed: bool) -> Reason | None:
        """Return why a feeder is refused, or None if the host accepts it.

        Only the answers "replace" and None change anything: the claim's fence is then the newest.

        Parameters
        ----------
        generation : str
            The generation that the feeder claims a host of.
        fence : Fence
            The fence of the claim.
        manifest : NewestManifest
            What the newest manifest says about the subtask.
        is_being_fed : bool
            Whether another attempt of the same job is connected and shows signs of life.
        """
        if generation != self.generation:
            return "foreign"
        if not self.is_newer(fence):
            return "stale"
        if is_being_fed:
            return "busy"
        self._newest = fence
        return None if self.is_content_of(manifest) else "replace"

    def is_newer(self, fence: Fence) -> bool:
        """H3: Tell whether a fence is the newest; only then may a feeder take over the host, or close a dirty one."""
        return fence > self._newest

    def is_content_of(self, manifest: NewestManifest) -> bool:
        """H2: Tell whether the host may go on: it is clean, and its content equals the newest manifest."""
        return self._content in (("manifest", manifest.snapshot_id), ("cut", manifest.cut_id or ""))

    def may_stop(self, fence: Fence) -> bool:
        """H3: Tell whether a stop is obeyed: its fence is at least as new as the fence of every accepted feeder."""
        return fence == self._newest or self.is_newer(fence)

    def mark_dirty(self) -> None:
        """Note that a feeder was let in: from now on, no manifest and no cut has the host's content."""
        self._content = None

    def mark_cut(self, cut_id: str) -> None:
        """Note that the content is a cut's; the next manifest shows whether the cut counts."""
        self._content = ("cut", cut_id)
