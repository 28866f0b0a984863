"""Internal: the elements in flight, and the rules by which they may leave."""
