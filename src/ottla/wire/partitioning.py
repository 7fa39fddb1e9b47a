"""Chooses the partition of a key as the Java client does: `murmur2`, made positive, modulo the number of partitions.

Comes in: a key, or a column of keys with the partitions already chosen. Goes out: partition numbers. Keys are hashed
over all partitions of the topic, whether their leaders are up or not. A null key is no key; an empty one is.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ottla.errors import InputError
from ottla.wire.kernels.encoding import BinaryIn
from ottla.wire.kernels.murmur import OPEN, hash_key, hash_rows

__all__ = ["OPEN", "hash_partitions", "murmur2", "partition_of_key"]

_SIGN = 1 << 31


def murmur2(key: bytes) -> int:
    """Return the hash of a key, the same signed number as `Utils.murmur2` of the Java client."""
    return (int(hash_key(key)) ^ _SIGN) - _SIGN


def partition_of_key(key: bytes, partitions: int) -> int:
    """Return the partition of a key in a topic with `partitions` partitions."""
    return (int(hash_key(key)) & (_SIGN - 1)) % partitions


def hash_partitions(key: BinaryIn, partitions: int, *, out: npt.NDArray[np.int32]) -> int:
    """Choose a partition for every row with a key that is still `OPEN` (-1) in `out`.

    Returns the number of rows that stay open. Raises `InputError` if the column is damaged.
    """
    if partitions < 1:
        raise InputError(f"a topic has at least one partition, not {partitions}")
    still_open = int(hash_rows(key.ends, key.data, key.nulls, partitions, out))
    if still_open < 0:
        raise InputError(f"column key is damaged: row {-1 - still_open} is not inside its data")
    return still_open
