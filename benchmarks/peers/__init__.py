"""The same work here and on what users would choose instead; `python -m benchmarks.peers` runs it."""
