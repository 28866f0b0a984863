"""How state is restored: a snapshot, a subtask's share of it, and its key groups one by one."""
