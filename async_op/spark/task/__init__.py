"""Internal: what a Python worker runs: a task that feeds its rows to a host, or to an operator on a thread."""
