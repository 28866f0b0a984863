"""Versions as they appear in file names, which sort like versions."""

from __future__ import annotations

from keygroups.errors import ConfigError

VERSION_DIGITS = 20


def version_name(version: int) -> str:
    """Return a version as it appears in file names, which sort like versions.

    Raises
    ------
    ConfigError
        The version is invalid.
    """
    is_whole = hasattr(version, "__index__") and not isinstance(version, bool)
    if not is_whole or not 0 < version < 10**VERSION_DIGITS:
        raise ConfigError("version", version, "versions are whole numbers from 1")
    return f"{version:0{VERSION_DIGITS}d}"


def is_version_name(name: str) -> bool:
    """Return whether a name is the name of a version."""
    return len(name) == VERSION_DIGITS and name.isascii() and name.isdigit() and int(name) > 0
