"""The version of the project, as the command line shows it; without imports, as the bare library needs it."""

from __future__ import annotations


def version_text() -> str:
    """Return the version of the project, or how it is run where it is not installed."""
    import importlib.metadata  # expensive: it also imports an e-mail parser

    try:
        return importlib.metadata.version("keygroups")
    except importlib.metadata.PackageNotFoundError:
        return "from a source tree"
