"""Topics of Kafka as a source and as a sink."""
