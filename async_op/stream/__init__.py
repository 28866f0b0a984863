"""A stream of elements through one operator, here or on Spark; `async_op.AsyncDataStream` is the entry point."""
