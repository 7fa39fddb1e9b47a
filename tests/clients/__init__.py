"""Readers, consumers and admins, interrupted and forked in the middle of every call that waits."""
