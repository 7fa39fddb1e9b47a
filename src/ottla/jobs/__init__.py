"""What is done with ranges of offsets: functions of one range that return a receipt, and the rounds around them.

`archive` runs the whole of it with one call. The jobs themselves know no engine. What decodes records is imported when
it is first used: the process in which a query of Spark plans its batches needs none of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla._lazy import lazy

if TYPE_CHECKING:
    from ottla.jobs.archives import archive
    from ottla.jobs.brokers import Brokers

_HOMES = {"Brokers": "ottla.jobs.brokers", "archive": "ottla.jobs.archives"}

__all__ = ["Brokers", "archive"]

if not TYPE_CHECKING:  # or every misspelt name would pass a type checker
    __getattr__, __dir__ = lazy(__name__, _HOMES)
