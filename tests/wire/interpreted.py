"""The results of `ottla.wire` for a fixed set of inputs, as plain values. As a script, it prints them.

`test_kernels` runs it twice: compiled, and in a process in which numba compiles nothing. Both results must be equal.
"""

from __future__ import annotations

import random
import sys
import warnings
from collections.abc import Iterator

from ottla.errors import WireError
from ottla.wire.batch import Batch, Codec
from ottla.wire.decode import Decoder
from ottla.wire.encode import BatchLimits
from ottla.wire.kernels.checksum import shift

from .rows import NOW, Row, encoded, raw_batch, records_bytes, rows_of

COUNT = 400


def _row(chance: random.Random) -> Row:
    def payload() -> bytes | None:
        return None if chance.random() < 0.2 else chance.randbytes(chance.choice((0, 3, 8, 15, 16, 17, 33, 70)))

    headers = tuple((f"k{i}", payload()) for i in range(chance.choice((0, 0, 1, 3))))
    return Row(payload(), payload(), headers, NOW + chance.randrange(-(10**6), 10**6))


def _mutated(data: bytes, chance: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(chance.randrange(3)):
        changed[chance.randrange(len(changed))] = chance.choice((0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)))
    return bytes(changed[: len(changed) - chance.choice((0, 0, 0, 1, 5))])


def _written(input_rows: list[Row]) -> str:
    batches = encoded(input_rows, limits=BatchLimits(max_bytes=400), fingerprint=True)
    return " ".join(f"{bytes(batch).hex()} {batch.fingerprint}" for batch in batches)


def _read(data: bytes) -> str:
    try:
        chunks = list(Decoder(fingerprint=True).decode([Batch.parse(data)], start=1))
    except WireError as error:
        return str(error)
    return " ".join(f"{chunk.fingerprint} {rows_of(chunk.records)}" for chunk in chunks)


def results() -> Iterator[str]:
    """One line for each input."""
    chance = random.Random(20)
    for _ in range(COUNT):
        input_rows = [_row(chance) for _ in range(chance.randrange(1, 8))]
        yield _written(input_rows)
        records = _mutated(records_bytes(input_rows), chance)
        yield _read(raw_batch(records, count=len(input_rows), codec=chance.choice((Codec.NONE, Codec.LZ4))))
        yield str(shift(chance.randrange(1 << 32), chance.randrange(1 << 31)))


if __name__ == "__main__":
    warnings.simplefilter("ignore", RuntimeWarning)  # words that wrap around are meant to
    sys.stdout.writelines(line + "\n" for line in results())
