"""Errors of the server; each says what to do next."""

from __future__ import annotations

from keygroups.errors import KeyGroupsError


class AddressUnavailable(KeyGroupsError, OSError):
    """The address of `serve` cannot be listened on."""

    is_permanent = True

    address: str
    """The address, as it was passed."""
    reason: str
    """What the system says."""

    _template = (
        "serve={address!r}: {reason}; stop the program that listens there, or choose another port (0 takes any that is "
        "free)"
    )
