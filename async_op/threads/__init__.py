"""Internal: lets other threads hand work to the thread that owns an object."""
