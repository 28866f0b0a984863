"""One subtask over many cuts: what waits to come in, its operator, and what has left."""
