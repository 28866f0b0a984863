"""Runs over bounded DataFrames: their input is stored first, in chunks, and each chunk is the input of an epoch."""
