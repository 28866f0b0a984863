"""Pipelines over Spark Connect: their epochs run beside the server, and the client's query talks to them by files."""
