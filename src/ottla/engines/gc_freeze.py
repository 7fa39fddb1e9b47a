"""Keeps small tasks small: what a Python worker has loaded is put out of the garbage collector's sight.

Called at the end of a task, in Spark's workers; it takes effect once in each process and changes nothing else.
"""

from __future__ import annotations

import functools
import gc


@functools.cache
def settle() -> None:
    """Spark's daemon collects garbage after every task. What the first task has imported (Spark, Arrow) is none, but
    looking through it takes 20 ms, as long as an empty task."""
    gc.collect()
    gc.freeze()
