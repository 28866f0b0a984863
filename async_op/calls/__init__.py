"""Internal: decides when the function is called for an entry, awaits its coroutine, and handles the outcome."""
