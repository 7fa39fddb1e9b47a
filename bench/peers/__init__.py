"""One module for each library that is measured, all with the same functions.

    VERSION                  what is measured, in words
    decoding(case, data)     names and callables that each decode all of `data` and return how many records there were
    encoding(case)           names and callables that each encode all records and return the batches

A case that a library cannot do raises `Unavailable`.
"""

from __future__ import annotations


class Unavailable(Exception):
    """This library cannot do this case here; the text says why."""
