"""Profiles: clusters that a user's settings file names, so that a command needs no address and no login."""
