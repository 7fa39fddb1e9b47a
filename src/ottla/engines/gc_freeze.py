"""Keeps small tasks fast: takes the modules that a Python worker has loaded out of the garbage collector's view.

Spark's workers call this at the end of a task. It takes effect once per process and changes nothing else.
"""

from __future__ import annotations

import functools
import gc


@functools.cache
def freeze_once() -> None:
    """Freeze all live objects, once per process."""
    # Spark's daemon collects garbage after every task. Scanning what the first task imported (Spark, Arrow) takes
    # 20 ms, as long as an empty task, and frees nothing.
    gc.collect()
    gc.freeze()
