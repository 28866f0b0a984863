"""Real flights, enriched asynchronously on Spark, through a crash and rescales: `python -m demo`."""
