"""Internal: rows on Spark: their keys and schemas, outputs as Arrow, and the column of dead letters."""
