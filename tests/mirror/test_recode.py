"""Batches that are encoded again keep their records as they are."""

from __future__ import annotations

import numpy as np
import pytest

from ottla.mirror.passage import Acceptance
from ottla.mirror.recode import Recoder
from ottla.wire.batch import Batch, Codec, split
from ottla.wire.columns import from_bytes
from ottla.wire.encode import encode

_TIMES = [0, 1_700_000_000_000, (1 << 63) // 1000 + 5, 40_000_000_000_000_000, -(1 << 62)]
"""Milliseconds; microseconds hold the first two only."""


def _batch(times: list[int], codec: Codec) -> Batch:
    columns = from_bytes([b"v%d" % number for number in range(len(times))])
    (new,) = encode(columns._replace(times=np.array(times, np.int64)), now_ms=0, codec=codec)
    (batch,) = split(bytes(new))
    return batch


@pytest.mark.parametrize("codec", list(Codec))
def test_times_that_microseconds_do_not_hold_are_kept(codec: Codec) -> None:
    recoder = Recoder()
    accepts = Acceptance(max_bytes=1 << 20, codec=Codec.ZSTD)
    recoded = list(recoder.recode(_batch(_TIMES, codec), accepts, topic="t", partition=0, start=1, stop=5))
    times = []
    for new, _ in recoded:
        (batch,) = split(bytes(new))
        exact = recoder._exact_times(batch)
        times += [exact[batch.header.base_offset + number] for number in range(batch.header.count)]
    assert times == _TIMES[1:]
