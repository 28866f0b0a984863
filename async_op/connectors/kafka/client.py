"""The client package, and which of its settings belong to the connectors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from async_op.connectors.errors import ConnectorNotInstalled
from keygroups.errors import ConfigError

REQUEST_SECONDS_MAX = 30.0
"""How long a request to the brokers may take, retries included."""


def load() -> Any:
    """Return the client package.

    Raises
    ------
    ConnectorNotInstalled
        It is not installed.
    """
    try:
        import confluent_kafka
    except ImportError as error:
        raise ConnectorNotInstalled("confluent-kafka", "kafka") from error
    return confluent_kafka


def check_config(config: Mapping[str, Any], ours: Mapping[str, Any]) -> dict[str, Any]:
    """Return the user's settings with those of the connector; no value of a setting gets into a message.

    Raises
    ------
    ConfigError
        The brokers are missing, or a setting belongs to the connector.
    """
    if not config.get("bootstrap.servers"):
        raise ConfigError("config", sorted(config), "name the brokers in 'bootstrap.servers'")
    if taken := sorted(set(config) & set(ours)):
        raise ConfigError("config", taken[0], "the connector sets it itself, because positions depend on it")
    return {**config, **ours}
