"""Hostile input for the gateway's kernels, in memory that notices a stray access.

Comes in: a seed and a number of inputs. Goes out: a checksum over everything that the kernels wrote, which must be the
same whether they are compiled, check bounds, or run as Python. A read or write outside ends the process.
"""

from __future__ import annotations

import argparse
import random
import zlib
from collections.abc import Iterator
from typing import Any

from tests.fuzz.areas import Areas, Plain, Strict, Walled

from ottla.gateway.datagram.format import Message, write
from ottla.wire.kernels import datagrams, framing, syslog
from ottla.wire.kernels.calling import CHECKED, INTERPRETED
from ottla.wire.kernels.copying import copy_pieces

from .syslog_lines import line

_TOGETHER = 200
_CLOCK = [1_795_000_000_000, 2026, 3_600_000, 7_200_000, 1_794_950_000_000]
_MOST_FRAME_BYTES = 200


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--inputs", type=int, required=True)
    options = parser.parse_args()
    areas: Areas = Strict() if INTERPRETED else Plain() if CHECKED else Walled()
    print(checksum(options.seed, options.inputs, areas))


def checksum(seed: int, inputs: int, areas: Areas) -> int:
    """Run the inputs, half of them syslog messages, and return what was written."""
    total = 0
    for number, part in enumerate(_portions(inputs)):
        chance = random.Random(f"{seed} {number}")
        areas.begin(number)
        run = (_syslog, _frames, _syslog, _datagrams)[number % 4]
        total = zlib.crc32(str(run(chance, part, areas)).encode(), total)
    return total


def _portions(inputs: int) -> Iterator[int]:
    while inputs > 0:
        yield min(inputs, _TOGETHER)
        inputs -= _TOGETHER


def _spans(messages: list[bytes], chance: random.Random) -> list[tuple[int, ...]]:
    spans: list[tuple[int, ...]] = []
    at = 0
    for message in messages:
        spans.append((at, at + len(message), chance.choice((0, 0, 0, framing.TRUNCATED, framing.CUT))))
        at += len(message)
    return spans


def _syslog(chance: random.Random, count: int, areas: Areas) -> int:
    """Messages one behind the other: the last one ends where the memory does."""
    messages = [line(chance) for _ in range(count)]
    data, spans = areas.given(b"".join(messages)), areas.table(_spans(messages, chance))
    rows = areas.rows(count, syslog.ROW_FIELDS)
    done = int(syslog.parse_syslog(data, spans, areas.numbers(_CLOCK), rows))
    _expect(done == count, f"{done} of {count} messages were parsed")
    total = 0
    size = sum(map(len, messages))
    for row in rows:
        fields = [int(field) for field in row]
        _expect(0 <= fields[syslog.START] <= fields[syslog.STOP] <= size, "a message lies outside")
        for column in (syslog.HOST, syslog.APP, syslog.PROCID, syslog.MSGID, syslog.DATA):
            inside = fields[syslog.START] <= fields[column] <= fields[column + 1] <= fields[syslog.STOP]
            _expect(inside, f"column {column} lies outside its message")
        total = areas.checksum(row, total)
    return _copied(chance, areas, data, size, total)


def _copied(chance: random.Random, areas: Areas, data: Any, size: int, total: int) -> int:
    """Pieces of the data and of other bytes, some of them not there."""
    other = areas.given(bytes(range(50)))
    starts = [chance.choice((0, size - 5, size - 4, -1, -46, -47, chance.randrange(-60, size + 5))) for _ in range(6)]
    ends = [0]
    for _ in starts:
        ends.append(ends[-1] + chance.choice((0, 1, 5, -1 if chance.random() < 0.02 else 5)))
    out = areas.octets(max(0, ends[-1] - chance.choice((0, 0, 0, 1))))
    code = int(copy_pieces(data, other, areas.numbers(starts), areas.numbers(ends), out))
    return areas.checksum(out, total) + code


def _frames(chance: random.Random, count: int, areas: Areas) -> int:
    """Streams of frames, cut anywhere, each one a call."""
    total = 0
    for number in range(count):
        areas.begin(number)
        if chance.random() < 0.3:
            total += _sized_frames(chance, areas)
            continue
        pieces = []
        for _ in range(chance.randrange(5)):
            message = line(chance)
            count_of = len(message) + chance.choice((0, 0, 0, 1, -1, 1000, 10**7))
            pieces.append(b"%d %s" % (count_of, message) if chance.random() < 0.5 else message + b"\n")
        stream = b"".join(pieces)
        stream = stream[: chance.randrange(len(stream) + 1)] if chance.random() < 0.5 else stream
        spans, state = areas.rows(chance.choice((1, 2, 20)), framing.SPAN_FIELDS), areas.int64s(framing.STATE_FIELDS)
        state[framing.SKIP] = chance.choice((0, 0, 0, 7, 10**6, -1))
        data = areas.given(stream)
        code = int(framing.frame_syslog(data, chance.randrange(3), _MOST_FRAME_BYTES, spans, state))
        total = _check_frames(areas, code, spans, state, len(stream), total)
    return total


def _sized_frames(chance: random.Random, areas: Areas) -> int:
    stream = b"".join(_datagram(chance) for _ in range(chance.randrange(4)))
    stream = stream[: chance.randrange(len(stream) + 1)]
    spans, state = areas.rows(chance.choice((1, 5)), framing.SPAN_FIELDS), areas.int64s(framing.STATE_FIELDS)
    code = int(framing.frame_sized(areas.given(stream), 8, 1000, spans, state))
    return _check_frames(areas, code, spans, state, len(stream), 0)


def _check_frames(areas: Areas, code: int, spans: Any, state: Any, size: int, total: int) -> int:
    position, count, before = int(state[framing.POSITION]), int(state[framing.SPANS]), 0
    _expect(0 <= position <= size and code in (framing.NEED_MORE, framing.FULL, framing.DESYNC), "an odd end")
    for row in spans[:count]:
        start, stop, _ = (int(field) for field in row)
        _expect(before <= start <= stop <= position, f"frame {start} to {stop} of {position} bytes")
        before = stop
        total = areas.checksum(row, total)
    return areas.checksum(state, total) + code


def _datagram(chance: random.Random) -> bytes:
    """One message: sound, or changed in a field that says how long something is."""
    topic = chance.choice((b"clicks", b"views", b"t" * 40))
    headers = tuple((b"name", chance.choice((None, b"", b"content"))) for _ in range(chance.choice((0, 0, 1, 3))))
    key = chance.choice((None, b"key", b""))
    partition_key = chance.choice((None, 7)) if not headers and key != b"" else None
    value = chance.randbytes(chance.choice((0, 1, 60)))
    message = bytearray(write(Message(topic, value, key, chance.choice((0, 5, -1, 2**62)), partition_key, headers)))
    for _ in range(chance.choice((0, 0, 1, 2))):
        at = chance.randrange(len(message))
        message[at : at + chance.choice((1, 1, 4))] = chance.choice((b"\xff", b"\x00", b"\x7f\xff\xff\xff", b"\x80"))
    if chance.random() < 0.3:
        message[:4] = len(message).to_bytes(4, "big")
    return bytes(message)


def _datagrams(chance: random.Random, count: int, areas: Areas) -> int:
    messages = [
        _datagram(chance) if chance.random() < 0.95 else chance.randbytes(chance.randrange(40)) for _ in range(count)
    ]
    spans = _spans(messages, chance)
    data, places = areas.given(b"".join(messages)), areas.table(spans)
    rows, state = areas.rows(count, datagrams.ROW_FIELDS), areas.int64s(datagrams.STATE_FIELDS)
    topics = areas.rows(chance.choice((1, 2, 64)), datagrams.TOPIC_FIELDS)
    code = int(datagrams.read_datagrams(data, places, rows, topics, state))
    _expect(code == datagrams.FULL or int(state[datagrams.MESSAGE]) == count, "not all messages were read")
    total = code
    for row, (start, stop, _) in zip(rows[: int(state[datagrams.MESSAGE])], spans, strict=False):
        fields = [int(field) for field in row]
        if fields[datagrams.CODE] == datagrams.SOUND:
            for column in (datagrams.KEY, datagrams.VALUE):
                is_null = fields[column] == fields[column + 1] == -1
                _expect(is_null or start <= fields[column] <= fields[column + 1] <= stop, "a field lies outside")
            _expect(0 <= fields[datagrams.TOPIC] < int(state[datagrams.TOPICS]), "a topic has no number")
            total = areas.checksum(row, total)
    sound = [tuple(int(field) for field in row) for row in rows if int(row[datagrams.CODE]) == datagrams.SOUND]
    if sound and code == datagrams.DONE:
        expected = sum(row[datagrams.HEADER_COUNT] for row in sound)
        entries = areas.rows(expected, 4)
        _expect(int(datagrams.find_headers(data, areas.table(sound), entries)) == expected, "headers are missing")
        for entry in entries:
            total = areas.checksum(entry, total)
    return total


def _expect(holds: bool, what: str) -> None:
    if not holds:
        raise AssertionError(what)


if __name__ == "__main__":
    main()
