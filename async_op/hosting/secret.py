"""H6: only who knows the run's secret gets in; both sides prove it, and neither shows it."""

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
    """Return what one side asks the other to sign; never the same twice, so that no proof can be used again."""
    return secrets.token_bytes(NONCE_BYTES)


def proof_of(secret: bytes, side: Side, host_nonce: bytes, feeder_nonce: bytes) -> bytes:
    """Sign both nonces; the side is signed with them, so that nobody can send a proof back."""
    return hmac.digest(secret, side.encode() + host_nonce + feeder_nonce, "sha256")


def is_proof(proof: bytes, secret: bytes, side: Side, host_nonce: bytes, feeder_nonce: bytes) -> bool:
    """Tell whether the other side knows the secret."""
    return hmac.compare_digest(proof, proof_of(secret, side, host_nonce, feeder_nonce))
