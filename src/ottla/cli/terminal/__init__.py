"""The live line on stderr, and signals."""
