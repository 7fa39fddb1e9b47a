"""The live line on stderr, signals, and Spark sessions."""
