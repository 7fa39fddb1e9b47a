"""Every input of a run, by number: the kept files and the hand-made ones first, then made ones without end.

Comes in: a seed and the directories of kept files. Goes out: `inputs[i]`, the same bytes in every process and on
every machine, so that a number is enough to say which input broke something.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from random import Random

from ottla.wire.batch import HEADER_BYTES, Codec

from . import answers, grammar
from .hostile import hostile_batches

HERE = Path(__file__).parent
CORPUS = HERE / "corpus"
CASES = HERE / "cases"
ENCODE = b"encode:"
"""What an input for the encoder begins with; the bytes after it seed the columns."""

_POOL_BYTES = 4096
_COMPRESSING = (Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD)


class BatchInputs:
    """Runs of record batches, and seeds for the encoder. `compress` is how often a batch is compressed."""

    def __init__(self, seed: int, directories: Iterable[Path] = (CORPUS, CASES), *, compress: float = 0.03) -> None:
        self._seed = seed
        self._compress = compress
        self.kept = hostile_batches() + kept_files(directories, "*.batches")
        self._pool = [data for data in self.kept if HEADER_BYTES <= len(data) <= _POOL_BYTES]

    def __getitem__(self, index: int) -> bytes:
        if index < len(self.kept):
            return self.kept[index]
        rng = Random(self._seed << 40 | index)
        kind = rng.random()
        if kind < 0.06:
            return ENCODE + rng.randbytes(6)
        if kind < 0.72:
            return self._batch(rng)
        if kind < 0.80:
            return b"".join(self._batch(rng) for _ in range(rng.randrange(2, 5)))
        return self._mutated(rng)

    def _batch(self, rng: Random) -> bytes:
        rate = rng.choice((0.0, 0.01, 0.03, 0.03, 0.1))
        codec = rng.choice(_COMPRESSING) if rng.random() < self._compress else Codec.NONE
        return grammar.batch(rng, rate, codec)

    def _mutated(self, rng: Random) -> bytes:
        made = rng.random() < 0.4
        codec = rng.choice(_COMPRESSING) if rng.random() < self._compress else Codec.NONE
        data = bytearray(grammar.batch(rng, 0.0, codec) if made else rng.choice(self._pool))
        # Mostly the records: a header that is refused hides everything behind it.
        first = HEADER_BYTES if rng.random() < 0.8 and len(data) > HEADER_BYTES else 0
        for _ in range(rng.choice((1, 1, 2, 3, 8))):
            _mutate(rng, data, first, self._pool)
        if len(data) >= HEADER_BYTES and rng.random() < 0.95:
            return grammar.resealed(bytes(data))
        return bytes(data)


def _mutate(rng: Random, data: bytearray, first: int, pool: list[bytes]) -> None:
    if len(data) <= first:
        return
    position = rng.randrange(first, len(data))
    kind = rng.randrange(7)
    if kind == 0:
        data[position] ^= 1 << rng.randrange(8)
    elif kind == 1:
        data[position] = rng.choice((0, 1, 2, 0x7F, 0x80, 0xFE, 0xFF))
    elif kind == 2:
        data[position : position + rng.randrange(1, 5)] = grammar.unsigned(grammar.zigzag(rng.choice(grammar.EDGES)))
    elif kind == 3:
        del data[position : position + rng.choice((1, 1, 2, 8, 1 << 20))]
    elif kind == 4:
        data[position:position] = rng.randbytes(rng.randrange(1, 9))
    elif kind == 5:
        stop = position + rng.randrange(1, 30)
        data[position:position] = data[position:stop]
    else:
        other = rng.choice(pool) if pool else b"\x00"
        data[position:] = other[rng.randrange(len(other)) :]


class AnswerInputs:
    """Bodies of Produce, Fetch and control responses; the first byte says which."""

    def __init__(self, seed: int, directories: Iterable[Path] = (CORPUS, CASES)) -> None:
        self._seed = seed
        self.kept = kept_files(directories, "*.answer")

    def __getitem__(self, index: int) -> bytes:
        if index < len(self.kept):
            return self.kept[index]
        rng = Random(self._seed << 40 | index)
        data = bytearray(answers.answer(rng))
        for _ in range(rng.choice((0, 1, 1, 2, 3, 8))):
            _mutate(rng, data, 1, [])
        return bytes(data)


def kept_files(directories: Iterable[Path], pattern: str) -> list[bytes]:
    """The kept inputs, in the order of their names."""
    return [file.read_bytes() for directory in directories for file in sorted(directory.glob(pattern))]
