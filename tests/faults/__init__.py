"""The producer against real clusters that break: what was acknowledged is there, once and in order."""
