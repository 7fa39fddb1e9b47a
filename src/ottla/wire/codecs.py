"""Compresses and decompresses whole batches, with a limit on the output.

Comes in: the records of one batch. Goes out: the same, compressed or not. Decompression must write only into memory
sized beforehand, so a decompression bomb stops at the limit. The codecs themselves (`compression`) are imported with
the first compressed batch.
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

_INITIAL_CAPACITY = 1 << 16


class DecompressionFailed(Exception):
    """Why a batch could not be decompressed. Internal: callers add which batch it was."""


def parse_codec(name: str | Codec) -> Codec:
    """Return a codec by its name, as in `compression="zstd"`. Raises `ConfigError` for an unknown name."""
    if isinstance(name, Codec):
        return name
    try:
        return Codec[name.upper()]
    except (KeyError, AttributeError):
        known = ", ".join(codec.name.lower() for codec in Codec)
        raise ConfigError(f"compression {name!r} is not one of {known}") from None


def check_level(codec: Codec, level: int | None) -> int | None:
    """Return the level to use. Raises `ConfigError` if the codec does not have it."""
    if level is None:
        return DEFAULT_LEVELS.get(codec)
    if codec not in _LEVELS:
        raise ConfigError(f"compression {codec.name.lower()} has no levels, got level {level}")
    lowest, highest = _LEVELS[codec]
    if not lowest <= level <= highest:
        raise ConfigError(f"compression {codec.name.lower()} has levels {lowest} to {highest}, got {level}")
    return level


def compress(codec: Codec, records: Buffer, level: int | None = None) -> Any:
    """Compress the records of a batch as Kafka expects them. Returns a bytes-like object."""
    if codec is Codec.NONE:
        return records
    from ottla.wire import compression

    return compression.compress(codec, records, level)


class Scratch:
    """A growing byte area that is reused; batches are decompressed into it one after another."""

    __slots__ = ("data", "used")

    def __init__(self) -> None:
        self.data: Bytes = np.empty(0, np.uint8)
        self.used = 0

    def clear(self) -> None:
        """Discard the content and keep the memory."""
        self.used = 0

    def view(self) -> Bytes:
        """Return the bytes decompressed since `clear`, read-only."""
        data = self.data[: self.used]
        data.flags.writeable = False
        return data

    def append(self, codec: Codec, records: Buffer, limit: int) -> tuple[int, int]:
        """Decompress `records` after the current content. Returns where they start and end.

        Raises `DecompressionFailed` if they are damaged or larger than `limit` bytes.
        """
        from ottla.wire.compression import NoRoom, decompress_into

        capacity = min(limit, max(_INITIAL_CAPACITY, 4 * len(records), len(self.data) - self.used))
        while True:
            self._ensure(capacity)
            try:
                out = self.data[self.used : self.used + capacity].data
                written = decompress_into(codec, records, out)
            except NoRoom:
                if capacity >= limit:
                    reason = f"decompresses to more than the limit of {limit:,} bytes ({Advice.BATCH_SIZE})"
                    raise DecompressionFailed(reason) from None
                capacity = min(limit, capacity * 4)
                continue
            start, self.used = self.used, self.used + written
            return start, self.used

    def _ensure(self, capacity: int) -> None:
        if self.used + capacity > len(self.data):
            # At least double, or many small batches would copy the content again and again.
            grown = np.empty(max(self.used + capacity, 2 * self.used), np.uint8)
            grown[: self.used] = self.data[: self.used]
            self.data = grown
