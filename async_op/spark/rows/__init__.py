"""Internal: what a row is on Spark: its key, its schema, how outputs become Arrow, a column for rows that failed."""
