"""`ottla audit`: count topics by time, compare tiers, and name the records that differ."""
