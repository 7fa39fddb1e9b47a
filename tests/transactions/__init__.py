"""Transactions on real brokers, read by confluent-kafka with read_committed."""
