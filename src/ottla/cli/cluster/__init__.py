"""`ottla cluster`: real Kafka brokers on this machine."""
