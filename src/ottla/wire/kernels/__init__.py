"""The compiled loops: decoding records, encoding records, hashing, checksum arithmetic.

They are compiled on first use and stored on disk as machine code, which runs without numba. They take arrays and
numbers, allocate nothing, raise nothing, release the GIL, and must never trust a length they read: a bad one ends the
loop with a code and a position. The kernels of `gathering` read Python objects in place and keep the GIL.
"""
