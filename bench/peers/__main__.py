"""The process of one peer: a request on standard input, timed samples on standard output."""

from __future__ import annotations

import importlib
import json
import struct
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import crc32c

from bench.harness import Effort, measure
from bench.peers import Unavailable
from bench.records import Case

Calls = Mapping[str, Callable[[], Any]]


def main() -> None:
    """Measure every case of the request with one peer."""
    request = json.load(sys.stdin)
    peer: Any = importlib.import_module(f"bench.peers.{request['peer']}")
    effort = Effort(**request["effort"])
    cases = [Case(**case) for case in request["cases"]]
    rows = [
        {"case": i, **row}
        for i, (case, file) in enumerate(zip(cases, request["files"], strict=True))
        for row in _rows(peer, case, Path(file).read_bytes(), effort)
    ]
    json.dump({"version": peer.VERSION, "rows": rows}, sys.stdout)


def _rows(peer: Any, case: Case, data: bytes, effort: Effort) -> Iterator[dict[str, Any]]:
    yield from _timed("decode", lambda: peer.decoding(case, data), lambda count: count == case.records, effort)
    yield from _timed("encode", lambda: peer.encoding(case), lambda batches: _is_right(batches, case), effort)


def _timed(
    operation: str, prepare: Callable[[], Calls], is_right: Callable[[Any], bool], effort: Effort
) -> Iterator[dict[str, Any]]:
    try:
        calls = prepare()
    except Unavailable as reason:
        yield {"operation": operation, "variant": "objects", "skipped": str(reason)}
        return
    for variant, call in calls.items():
        if not is_right(call()):
            raise AssertionError(f"{operation}, {variant}: the result is wrong")
        samples = [(sample.wall, sample.cpu) for sample in measure(call, effort)]
        yield {"operation": operation, "variant": variant, "samples": samples}


def _is_right(batches: Sequence[Any], case: Case) -> bool:
    """Whether these are whole batches with a checksum that fits, and all records are in them."""
    if case.records and not len(batches):
        return False
    if isinstance(batches, memoryview):  # a plain copy has no batches
        return len(batches) >= case.records * case.record_bytes
    total = 0
    for batch in map(bytes, batches):
        (crc,) = struct.unpack_from(">I", batch, 17)
        (count,) = struct.unpack_from(">i", batch, 57)
        if crc != crc32c.crc32c(batch[21:]):
            return False
        total += count
    return total == case.records


if __name__ == "__main__":
    main()
