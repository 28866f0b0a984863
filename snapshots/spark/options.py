"""The options of the data source as Spark passes them: text, with case-insensitive names."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from keygroups.errors import ConfigError
from snapshots.store import SnapshotStore

NAMES = ("path", "uri", "version", "what", "state", "kind", "parallelism", "max_parallelism", "storage_options")


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The options of one read or write.

    Attributes
    ----------
    given : mapping of str to str
        The options that the user passed.
    """

    given: Mapping[str, str]

    def check(self) -> None:
        """Refuse options that the data source does not have.

        Raises
        ------
        ConfigError
            There is such an option; the error names those that exist.
        """
        for name in self.given:
            if name.lower() not in NAMES:
                raise ConfigError(name, self.given[name], f"there is no such option; use one of {', '.join(NAMES)}")

    def text(self, name: str) -> str | None:
        """Return an option as text, or None if it was not given."""
        return self.given.get(name)

    def required(self, name: str) -> str:
        """Return an option, or raise `ConfigError` if it was not given."""
        value = self.given.get(name)
        if value is None:
            raise ConfigError(name, None, f"pass it: .option({name!r}, …)")
        return value

    def number(self, name: str) -> int | None:
        """Return an option as an integer, or None if it was not given."""
        value = self.given.get(name)
        if value is None:
            return None
        try:
            return int(value)
        except ValueError:
            raise ConfigError(name, value, "it must be a whole number") from None

    def store(self) -> SnapshotStore:
        """Open the operator's folder that `path` or `uri` names."""
        uri = self.given.get("path") or self.given.get("uri")
        if uri is None:
            raise ConfigError(
                "path", None, "name one operator's folder: .load(uri), .save(uri) or .option('path', uri)"
            )
        return SnapshotStore.at(uri, storage_options=self._storage_options())

    def _storage_options(self) -> dict[str, Any] | None:
        text = self.given.get("storage_options")
        if text is None:
            return None
        try:
            options = json.loads(text)
        except ValueError:
            options = None
        if not isinstance(options, dict):
            # The message does not show the text, which may contain a secret.
            raise ConfigError("storage_options", "…", "pass a JSON object, such as json.dumps({'anon': True})")
        return options
