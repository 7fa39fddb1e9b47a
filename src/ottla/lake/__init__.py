"""Archives on disk: their layout, the ledger that says what is in them, and how an entry is published once."""
