"""Archives of Kafka records on disk: folders of Parquet files with a ledger of what was archived.

`lake.Lake` opens an archive, records what tasks have staged and publishes it, exactly once. `status` and `verifying`
inspect it. This room knows no engine.
"""
