"""Internal: the driver's side of an epoch: its source position, its run, its commit and its delivery."""
