"""What is done with ranges of offsets: functions of one range that return a receipt, and the rounds around them.

`archive` runs the whole of it with one call. The jobs themselves know no engine.
"""

from __future__ import annotations

from ottla.jobs.archive_range import Brokers
from ottla.jobs.archives import archive

__all__ = ["Brokers", "archive"]
