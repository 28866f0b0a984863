"""Arrow schemas as text, for manifests and the footers of Parquet files."""

from __future__ import annotations

import base64

import pyarrow as pa


def encode_schema(schema: pa.Schema) -> str:
    """Return the Base64 text of an Arrow IPC schema message."""
    return base64.b64encode(schema.serialize()).decode()


def decode_schema(text: str | bytes) -> pa.Schema:
    """Decode the text of `encode_schema`."""
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))
