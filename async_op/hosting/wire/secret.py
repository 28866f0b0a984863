"""H6: only feeders that know the run's secret get in; both sides prove that they know it, and neither sends it."""

from __future__ import annotations

import hmac
import secrets
from typing import Literal

NONCE_BYTES = 32
PROOF_BYTES = 32

Side = Literal["host", "feeder"]


def new_secret() -> bytes:
    """Return the secret of a new run."""
    return secrets.token_bytes(32)


def new_nonce() -> bytes:
    """Return bytes that one side asks the other to sign; they never repeat, so that no proof can be used again."""
    return secrets.token_bytes(NONCE_BYTES)


def proof_of(secret: bytes, side: Side, host_nonce: bytes, feeder_nonce: bytes) -> bytes:
    """Sign both nonces; the side is signed, too, so that a proof cannot be sent back as the other side's own."""
    return hmac.digest(secret, side.encode() + host_nonce + feeder_nonce, "sha256")


def is_proof(proof: bytes, secret: bytes, side: Side, host_nonce: bytes, feeder_nonce: bytes) -> bool:
    """Tell whether a proof shows that the other side knows the secret."""
    return hmac.compare_digest(proof, proof_of(secret, side, host_nonce, feeder_nonce))
