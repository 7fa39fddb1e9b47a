"""Consumer groups: membership in both protocols, and the consumer that reads what its group gives it."""
