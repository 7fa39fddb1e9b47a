"""`ottla archive`: topics into a folder of Parquet files or a Delta table, exactly once."""
