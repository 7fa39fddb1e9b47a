"""Engines: they run a job over ranges, here or on Spark, and do not know what the job does."""
