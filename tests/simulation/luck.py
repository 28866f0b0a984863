"""What a simulation must not leave to luck: ids, threads that write, and pauses."""

from __future__ import annotations

import random
import secrets
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from unittest import mock

from snapshots.commit import stored_lists
from snapshots.filesystem import retry
from snapshots.format import file_lists, files
from tests.async_op.job.virtual_job_loop import OneAfterTheOther


@contextmanager
def without_luck(seed: int) -> Iterator[None]:
    """Let ids follow from the seed, and storage work in one thread and without pauses."""
    ids = random.Random(f"{seed}/ids")

    def new_id() -> uuid.UUID:
        return uuid.UUID(int=ids.getrandbits(128), version=4)

    with ExitStack() as patches:
        patches.enter_context(mock.patch.object(uuid, "uuid4", new_id))
        patches.enter_context(mock.patch.object(secrets, "token_hex", lambda size: ids.randbytes(size).hex()))
        for module in (files, file_lists, stored_lists):
            patches.enter_context(mock.patch.object(module, "DaemonPool", OneAfterTheOther))
        patches.enter_context(mock.patch.object(retry, "pause"))
        yield
