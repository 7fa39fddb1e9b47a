"""The same records through a real broker: written by one client, read by another, equal in every field."""
