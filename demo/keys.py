"""The names under which the service knows things; both sides use them."""

from __future__ import annotations


def weather_key(origin: str, time_hour: str) -> str:
    """Name the weather of an airport and hour."""
    return f"weather:{origin}:{time_hour}"


def plane_key(tailnum: str | None) -> str:
    """Name a plane; a flight without a tail number asks for an unregistered plane."""
    return f"plane:{tailnum or ''}"
