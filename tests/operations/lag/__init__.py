"""Lag: what polls see, and what it means."""
