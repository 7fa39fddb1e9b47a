"""Records on their way to the brokers: which partition, which batch, sent, acknowledged, kept."""
