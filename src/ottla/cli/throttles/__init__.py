"""`ottla throttles`: shows replication throttles, and clears those that no move needs."""
