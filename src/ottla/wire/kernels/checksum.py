"""Updates a CRC-32C after its first bytes changed, without reading the rest.

For messages A and B, crc(A + B) = shift(crc(A), len(B)) xor crc(B), where `shift` multiplies by x**(8 * len(B)) modulo
the polynomial. So replacing A by A' changes the checksum by shift(crc(A) xor crc(A'), len(B)), which takes a few
hundred steps no matter how long B is. A checksum that was wrong before stays wrong.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ottla.wire.kernels.calling import NUMBER, inlined, kernel

_POLYNOMIAL = 0x82F63B78  # CRC-32C, bits reversed: the highest bit is x**0
_ONE = 0x80000000


@inlined
def _multiply(a: Any, b: Any) -> Any:
    """Return the product of two polynomials modulo the polynomial."""
    product = 0
    for _ in range(32):
        if a & _ONE:
            product ^= b
        a = (a << 1) & 0xFFFFFFFF
        b = (b >> 1) ^ (_POLYNOMIAL if b & 1 else 0)
    return product


def _powers() -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return x**(8 * 2**i) for each i: the factor for a run of 2**i bytes."""
    power = _ONE >> 8
    powers = []
    for _ in range(31):
        powers.append(power)
        power = _multiply(power, power)
    return np.array(powers, np.int64)


_BYTE_POWERS = _powers()


@kernel(difference=NUMBER, byte_count=NUMBER)
def shift(difference: Any, byte_count: Any) -> Any:
    """Return what `difference` in a checksum becomes if `byte_count` (below 2**31) more bytes follow."""
    i = 0
    while byte_count > 0:
        if byte_count & 1:
            difference = _multiply(_BYTE_POWERS[i], difference)
        byte_count >>= 1
        i += 1
    return difference
