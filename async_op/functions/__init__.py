"""What users write functions with: their classes, what a call sees, and what functions share."""
