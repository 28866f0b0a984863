"""Who may feed a host, and whether its content is what they start from. Pure: it knows no operator and no transport."""

from __future__ import annotations

from typing import Literal, TypeAlias

from async_op.hosting.messages import Fence, Hello, Manifest, Reason

Content: TypeAlias = tuple[Literal["manifest", "cut"], str | None] | None
"""What a host holds: all of a manifest, all of a cut of its own, or (None) something in between."""

_NOBODY = Fence(-1, -1)


class Gate:
    """Judges each hello and stop.

    Parameters
    ----------
    generation : str
        The host's.
    restored_from : str or None
        The id of the manifest that the host was restored from.
    """

    def __init__(self, generation: str, restored_from: str | None) -> None:
        self.generation = generation
        self._newest = _NOBODY
        self._content: Content = ("manifest", restored_from)

    def judge(self, hello: Hello, *, is_being_fed: bool) -> Reason | None:
        """Return why a feeder is refused, or None if the host goes on with it.

        Only an answer of "replace", or None, changes anything.

        Parameters
        ----------
        hello : Hello
            The claim.
        is_being_fed : bool
            Another feeder that shows life is connected.
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
        """H3: an older feeder changes nothing; only a newer one takes over, or closes a host that somebody has left."""
        return fence > self._newest

    def is_content_of(self, manifest: Manifest) -> bool:
        """H2: a host goes on only if it is clean and its content is exactly the newest manifest's."""
        return self._content in (("manifest", manifest.snapshot_id), ("cut", manifest.cut_id or ""))

    def may_stop(self, fence: Fence) -> bool:
        """H3 for a stop: it is obeyed unless somebody newer has come since; who was let in may also end it."""
        return fence == self._newest or self.is_newer(fence)

    def soil(self) -> None:
        """Note that the content is nobody's from now on: somebody was let in."""
        self._content = None

    def clean(self, cut_id: str) -> None:
        """Note that the content is that of a cut; whether it counts is for the next manifest to say."""
        self._content = ("cut", cut_id)
