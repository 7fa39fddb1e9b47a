"""The compiled loops: record walking, record writing, hashing, checksum arithmetic.

They are compiled on first use and kept on disk as machine code, for which numba is not needed any more. They take
arrays and numbers, allocate nothing, raise nothing, release the GIL, and never trust a length they read: a bad one ends
the loop with a code and a position. Those of `gathering` read Python's objects where they lie, and keep the GIL.
"""
