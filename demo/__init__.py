"""Real flights, enriched asynchronously on Spark, through a crash and a rescale: `python -m demo`."""
