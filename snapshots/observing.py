"""Publishes snapshots, restores and rescales as events."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator

from keygroups.context_managers import contextmanager
from keygroups.events import Value, observed
from snapshots.format.manifest import DataFile, Manifest

log = logging.getLogger("snapshots")


@contextmanager
def observed_rescale(operator_id: str) -> Iterator[Callable[[Manifest, Manifest], None]]:
    """Publish a rescale; the body calls the yielded function with the manifests before and after it."""
    with observed(log, logging.INFO, "rescale", operator_id=operator_id) as found:
        yield lambda parent, manifest: found.update(
            version=manifest.version,
            from_parallelism=parent.parallelism,
            parallelism=manifest.parallelism,
            max_parallelism=manifest.max_parallelism,
            rewritten=manifest.operation == "rewrite",
        )


def sizes_of(files: Iterable[DataFile]) -> dict[str, Value]:
    """Return the number, bytes and rows of files in total."""
    files = list(files)
    return {
        "files": len(files),
        "bytes": sum(file.bytes for file in files),
        "rows": sum(file.rows for file in files),
    }
