"""Internal: what an epoch is for a job and for a pipeline alike, from its commit to its delivery."""
