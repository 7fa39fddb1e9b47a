"""The spool: encoded batches kept on disk until they are acknowledged, so that a dead process loses none of them."""

from ottla.produce.spool.inspection import export, inspect
from ottla.produce.spool.store import Store
from ottla.produce.spool.values import Damage, Entry, Owner, Stored, Ticket

__all__ = ["Damage", "Entry", "Owner", "Store", "Stored", "Ticket", "export", "inspect"]
