"""Results that depend on nothing but bytes: a world reads the same manifests and footers again and again.

All readers still read all bytes and compare all digests. What is remembered is only what the bytes mean.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import lru_cache
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq

from snapshots.format import parquet
from snapshots.format.manifest_head import Head


@contextmanager
def remembered() -> Iterator[None]:
    """Decode equal manifests and equal footers once."""
    metadata_of = lru_cache(maxsize=None)(lambda footer: pq.read_metadata(pa.BufferReader(footer)))

    def read_metadata(source: Any) -> pq.FileMetaData:
        return metadata_of(source.read() if isinstance(source, pa.BufferReader) else bytes(source))

    remembering = SimpleNamespace(**{**vars(pq), "read_metadata": read_metadata})
    with ExitStack() as patches:
        patches.enter_context(mock.patch.object(parquet, "pq", remembering))
        patches.enter_context(
            mock.patch.object(parquet, "decode_schema", lru_cache(maxsize=None)(parquet.decode_schema))
        )
        patches.enter_context(mock.patch.object(Head, "from_bytes", lru_cache(maxsize=None)(Head.from_bytes)))
        yield
