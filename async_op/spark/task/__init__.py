"""Internal: what a Python worker runs: one operator on a thread of its own, fed by the task with its rows."""
