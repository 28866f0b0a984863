"""Where a subtask lives: in this loop, on a thread beside it, or in a process of its own.

A *host* keeps one subtask over many epochs; a *feeder* brings it the rows of one epoch and asks for the cut. The rules
H1 to H9 are on one page, `docs/explanation/hosts.md`, and each is named where it is kept: `host` (H1, H2, H3, H5, H8),
`epoch` (H4, H7), `wire.sockets` (H6); `spark.epoch.delivery` keeps H9. Internal: users touch only what is built on it.
"""
