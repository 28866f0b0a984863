"""Internal: one subtask's operator: its assembly, its life cycle, the admission of elements, and recovery."""
