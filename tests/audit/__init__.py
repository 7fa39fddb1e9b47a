"""Tiers are compared, and records that differ are named."""
