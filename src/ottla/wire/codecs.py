"""Compression of whole batches: the five codecs as Kafka frames them, with a bound on what comes out.

Comes in: the records of one batch. Goes out: the same, compressed or not. Decompression writes only into memory that
was sized beforehand, so a batch that would grow without end stops at the limit instead of filling the machine.
Those who do it are imported with the first batch that is compressed (`compression`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ottla.errors import Advice, ConfigError
from ottla.wire.batch import Buffer, Codec

Bytes = npt.NDArray[np.uint8]

DEFAULT_LEVELS = {Codec.GZIP: 6, Codec.LZ4: 0, Codec.ZSTD: 3}
_LEVELS = {Codec.GZIP: (1, 9), Codec.LZ4: (0, 16), Codec.ZSTD: (-22, 22)}

_FIRST_ROOM = 1 << 16


class DecompressionFailed(Exception):
    """Why a batch could not be decompressed. Internal: callers say which batch it was."""


def parse_codec(name: str | Codec) -> Codec:
    """A codec by its name, as in `compression="zstd"`."""
    if isinstance(name, Codec):
        return name
    try:
        return Codec[name.upper()]
    except (KeyError, AttributeError):
        known = ", ".join(codec.name.lower() for codec in Codec)
        raise ConfigError(f"compression {name!r} is not one of {known}") from None


def check_level(codec: Codec, level: int | None) -> int | None:
    """The level to use, or a `ConfigError` when the codec does not have it."""
    if level is None:
        return DEFAULT_LEVELS.get(codec)
    if codec not in _LEVELS:
        raise ConfigError(f"compression {codec.name.lower()} has no levels, got level {level}")
    lowest, highest = _LEVELS[codec]
    if not lowest <= level <= highest:
        raise ConfigError(f"compression {codec.name.lower()} has levels {lowest} to {highest}, got {level}")
    return level


def compress(codec: Codec, records: Buffer, level: int | None = None) -> Any:
    """The records of a batch, compressed as Kafka expects it; a bytes-like object."""
    if codec is Codec.NONE:
        return records
    from ottla.wire import compression

    return compression.compress(codec, records, level)


class Scratch:
    """A byte area, kept and grown, into which batches are decompressed one after another."""

    __slots__ = ("data", "used")

    def __init__(self) -> None:
        self.data: Bytes = np.empty(0, np.uint8)
        self.used = 0

    def clear(self) -> None:
        """Forget what is in it; the memory stays."""
        self.used = 0

    def view(self) -> Bytes:
        """What was decompressed since `clear`, read-only."""
        data = self.data[: self.used]
        data.flags.writeable = False
        return data

    def append(self, codec: Codec, records: Buffer, limit: int) -> tuple[int, int]:
        """Decompress `records` behind what is there and tell from where to where.

        Raises `DecompressionFailed` when they are damaged or come out larger than `limit` bytes.
        """
        from ottla.wire.compression import NoRoom, decompress_into

        room = min(limit, max(_FIRST_ROOM, 4 * len(records), len(self.data) - self.used))
        while True:
            self._ensure(room)
            try:
                out = self.data[self.used : self.used + room].data
                written = decompress_into(codec, records, out)
            except NoRoom:
                if room >= limit:
                    reason = f"decompresses to more than the limit of {limit:,} bytes ({Advice.BATCH_SIZE})"
                    raise DecompressionFailed(reason) from None
                room = min(limit, room * 4)
                continue
            start, self.used = self.used, self.used + written
            return start, self.used

    def _ensure(self, room: int) -> None:
        if self.used + room > len(self.data):
            # At least twice what must be copied, or many small batches would copy it again and again.
            grown = np.empty(max(self.used + room, 2 * self.used), np.uint8)
            grown[: self.used] = self.data[: self.used]
            self.data = grown
