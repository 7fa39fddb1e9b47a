"""The spool: encoded batches kept on disk until they are acknowledged, so that the death of a process loses none of
them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla._lazy import lazy

if TYPE_CHECKING:
    from ottla.produce.spool.inspection import export, inspect
    from ottla.produce.spool.store import Store
    from ottla.produce.spool.values import Damage, Entry, Owner, Stored, Ticket

_HOMES = {
    "Damage": "ottla.produce.spool.values",
    "Entry": "ottla.produce.spool.values",
    "Owner": "ottla.produce.spool.values",
    "Store": "ottla.produce.spool.store",
    "Stored": "ottla.produce.spool.values",
    "Ticket": "ottla.produce.spool.values",
    "export": "ottla.produce.spool.inspection",
    "inspect": "ottla.produce.spool.inspection",
}

__all__ = ["Damage", "Entry", "Owner", "Store", "Stored", "Ticket", "export", "inspect"]

if not TYPE_CHECKING:  # or every misspelt name would pass a type checker
    __getattr__, __dir__ = lazy(__name__, _HOMES)
