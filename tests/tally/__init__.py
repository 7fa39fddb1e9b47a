"""Tallies and how they are counted."""
