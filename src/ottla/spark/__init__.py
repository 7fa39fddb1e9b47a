"""Kafka on Spark without a jar: the data source `ottla`, sessions, pipelines."""
