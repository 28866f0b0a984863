"""How a snapshot is made: subtasks write parts, the coordinator creates a manifest, and stale writers are fenced."""
