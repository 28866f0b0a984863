"""Internal: the driver's side of an epoch: its place in the source, its run, its commit, its way to the sink."""
