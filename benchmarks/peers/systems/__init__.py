"""One module for each system that does the work: `PEER` in it. A module imports nothing that its own system lacks."""
