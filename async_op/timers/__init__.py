"""Internal: everything that waits for a time: deadlines, retries, and the timers of keys."""
