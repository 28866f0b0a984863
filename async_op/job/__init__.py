"""A job: a source, a chain of steps and a sink in one process; `async_op.Job` is the entry point."""
