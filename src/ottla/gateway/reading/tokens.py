"""The lease on a unit as a text that a client sends back. Pure.

A unit, a lease and how much of the unit was handed out go in; text comes out, and back. It holds all that a store needs
to end the unit, so any gateway with that store takes it, also one that was started later. The holder in it is random:
a lease cannot be guessed.
"""

from __future__ import annotations

import base64
import binascii
from typing import NamedTuple

import msgspec

from ottla.engines.fleet.units import Lease
from ottla.model import OffsetRange

_LONGEST = 1000
_LARGEST = (1 << 63) - 1


class Token(NamedTuple):
    """A lease on a unit."""

    unit: OffsetRange
    reached: int
    """The offset behind what was handed out."""
    lease: Lease

    def text(self) -> str:
        """Return what a client sends back."""
        unit = self.unit
        fields = [unit.partition, unit.start, unit.stop, self.reached, self.lease.number, self.lease.holder]
        return base64.urlsafe_b64encode(msgspec.json.encode(fields)).rstrip(b"=").decode()


def parse(text: str, topic: str) -> Token:
    """Return the lease of a text. Raises `ValueError` if it is none."""
    if not 0 < len(text) <= _LONGEST or not text.isascii():
        raise ValueError("it has no lease's length")
    try:
        data = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        partition, start, stop, reached, number, holder = msgspec.json.decode(
            data, type=tuple[int, int, int, int, int, str]
        )
    except (binascii.Error, msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise ValueError("it is cut or changed") from error
    if not 0 <= start <= reached <= stop <= _LARGEST or not 0 <= partition < 1 << 31 or not 0 < number <= _LARGEST:
        raise ValueError("its numbers are wrong")
    return Token(OffsetRange(topic, partition, start, stop), reached, Lease(number, holder))
