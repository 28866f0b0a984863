"""The client package, and which of its settings belong to the connectors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from async_op.connectors.errors import ConnectorNotInstalled
from keygroups.arguments import check_settings, check_text
from keygroups.errors import ConfigError

REQUEST_SECONDS_MAX = 30.0
"""How long a request to the brokers may take, retries included."""
_OF_PRODUCERS = {
    "transactional.id",
    "transaction.timeout.ms",
    "enable.idempotence",
    "enable.gapless.guarantee",
    "queue.buffering.max.messages",
    "queue.buffering.max.kbytes",
    "queue.buffering.max.ms",
    "linger.ms",
    "message.send.max.retries",
    "retries",
    "queue.buffering.backpressure.threshold",
    "compression.codec",
    "compression.type",
    "compression.level",
    "batch.num.messages",
    "batch.size",
    "delivery.report.only.error",
    "sticky.partitioning.linger.ms",
    "request.required.acks",
    "acks",
    "request.timeout.ms",
    "message.timeout.ms",
    "delivery.timeout.ms",
    "queuing.strategy",
    "produce.offset.report",
    "partitioner",
    "on_delivery",
}
"""What librdkafka's list of settings marks with a P: everything else is for consumers, too."""
PASSING = (
    "_TRANSPORT",
    "_ALL_BROKERS_DOWN",
    "_TIMED_OUT",
    "_RESOLVE",
    "LEADER_NOT_AVAILABLE",
    "NOT_LEADER_FOR_PARTITION",
    "REQUEST_TIMED_OUT",
    "BROKER_NOT_AVAILABLE",
    "REPLICA_NOT_AVAILABLE",
    "NETWORK_EXCEPTION",
    "KAFKA_STORAGE_ERROR",
    "FENCED_LEADER_EPOCH",
    "UNKNOWN_LEADER_EPOCH",
    "OFFSET_NOT_AVAILABLE",
)
"""The errors that the client recovers from; it does not call them retriable, because nothing need be asked again."""


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


def check_topic(topic: object) -> str:
    """Return the name of a topic; raises `ConfigError` unless it is text."""
    return check_text("topic", topic, reason="name a topic")


def check_config(config: Mapping[str, Any], ours: Mapping[str, Any]) -> dict[str, Any]:
    """Return the user's settings with the connector's; no value of a setting gets into a message.

    Raises
    ------
    ConfigError
        The brokers are missing, or a setting belongs to the connector.
    """
    config = check_settings("config", config)
    if not config.get("bootstrap.servers"):
        raise ConfigError("config", sorted(config), "name the brokers in 'bootstrap.servers'")
    if taken := sorted(set(config) & set(ours)):
        raise ConfigError("config", taken[0], "the connector sets it itself, because positions depend on it")
    return {**config, **ours}


def for_consumer(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that a consumer beside a producer takes: all but the producer's own.

    What security needs is not listed anywhere, because the list would be incomplete one day: certificates, tokens and
    callbacks all pass.
    """
    return {name: value for name, value in config.items() if name not in _OF_PRODUCERS}


def is_passing(error: Any) -> bool:
    """Return whether an error of the client is one of brokers that may be back soon."""
    codes = load().KafkaError
    return error.retriable() or error.code() in {getattr(codes, name) for name in PASSING}
