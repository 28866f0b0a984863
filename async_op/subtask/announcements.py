"""Tells the function of a host which of its cuts were committed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from async_op.errors import as_exception

_log = logging.getLogger(__package__)


class Announcements:
    """Calls `snapshot_complete` for committed cuts, one at a time. Only the thread of the event loop may use it.

    A host learns only of the newest manifest, and the newest version stands for those before it. So while one call is
    under way, only the newest version waits.

    Parameters
    ----------
    tell : coroutine function
        Called with the version and the id of the cut.
    fail : callable
        Called with the error that `tell` raises.
    """

    def __init__(
        self, tell: Callable[[int, str], Coroutine[Any, Any, None]], fail: Callable[[BaseException], None]
    ) -> None:
        self._tell = tell
        self._fail = fail
        self._written: tuple[str, int] | None = None
        self._due: tuple[str, int] | None = None
        self._telling: asyncio.Task[None] | None = None
        self._is_closed = False

    def wrote(self, cut_id: str, version: int) -> None:
        """Note that a part was written; only a manifest that names its cut shows that it was committed."""
        self._written = cut_id, version

    def committed(self, cut_id: str | None) -> None:
        """Note which cut the newest manifest names; None if none of this host."""
        if self._written is None or self._written[0] != cut_id:
            return
        self._due, self._written = self._written, None
        if self._telling is None:
            self._telling = asyncio.get_running_loop().create_task(self._run(), name="keygroups snapshot complete")

    async def finish(self) -> None:
        """Wait for the calls that are due; what they raise from now on is told in the log."""
        self._is_closed = True
        if self._telling is not None:
            await asyncio.wait([self._telling])

    async def _run(self) -> None:
        try:
            while self._due is not None:
                (cut_id, version), self._due = self._due, None
                await self._tell(version, cut_id)
        except BaseException as error:  # noqa: BLE001 - the next feeder raises it, or the log tells
            if self._is_closed:
                _log.exception("the function failed in snapshot_complete")
            self._fail(as_exception(error))
        finally:
            self._telling = None
