"""Where an operator lives: in this loop, on a thread beside it, or in a process of its own.

A *host* keeps one subtask's operator over many epochs; a *feeder* brings it the rows of one epoch and asks for the cut.
The rules H1 to H9 are described where they are kept: `host` (H1, H8), `gate` (H2, H3), `parts` (H4), `lease` (H5),
`wire.secret` (H6), `placement` (H7); `spark.epoch.delivery` keeps H9. Internal: users touch only what is built on it.
"""
