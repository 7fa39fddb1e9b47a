"""The protocol of the fake: one module per message with its key, its versions and `handle`, and `table` with them
all."""
