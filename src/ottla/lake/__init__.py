"""Archives of Kafka records on disk: folders of Parquet files, with a ledger of what came into them.

`lake.Lake` opens one, brings in what tasks have staged and publishes it exactly once; `status` and `verifying` look at
it. No engine is known here.
"""
