"""H2 and H3: whose claims a host accepts, and whether its content equals the newest manifest.

Knows no operator and no transport.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from async_op.hosting.messages import Fence, Hello, NewestManifest, Reason

Content: TypeAlias = tuple[Literal["manifest", "cut"], str | None] | None
"""What a host holds: exactly a manifest's content, exactly its last cut's, or (None) something in between."""

_NO_FENCE = Fence(-1, -1)


class Fencing:
    """Decides which hellos and stops a host accepts.

    Parameters
    ----------
    generation : str
        The generation of the host.
    restored_from : str or None
        The id of the manifest that the host was restored from; None if it began without a snapshot.
    """

    def __init__(self, generation: str, restored_from: str | None) -> None:
        self.generation = generation
        self._newest = _NO_FENCE
        self._content: Content = ("manifest", restored_from)

    def judge(self, hello: Hello, *, is_being_fed: bool) -> Reason | None:
        """Return why a feeder is refused, or None if the host accepts it.

        Only the answers "replace" and None change anything: the hello's fence is then the newest.

        Parameters
        ----------
        hello : Hello
            The feeder's claim.
        is_being_fed : bool
            Whether another attempt of the same job is connected and shows signs of life.
        """
        if hello.generation != self.generation:
            return "foreign"
        if not self.is_newer(hello.fence):
            return "stale"
        if is_being_fed:
            return "busy"
        self._newest = hello.fence
        return None if self.is_content_of(hello.manifest) else "replace"

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
