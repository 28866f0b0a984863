"""A host as a process of its own: how it is started, which files it has, and how it ends."""
