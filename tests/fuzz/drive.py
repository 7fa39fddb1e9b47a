"""One input through the kernels: laid out as `Decoder` and `ColumnBuffers` would, called, and summed up in one number.

Comes in: bytes, and the memory to use. Goes out: the answer code and a checksum over everything the kernel wrote,
equal in every layer. What the kernels are (compiled, checked or plain Python) depends on the process.
"""

from __future__ import annotations

from random import Random
from typing import Any, NamedTuple

import numpy as np

from ottla.errors import WireError
from ottla.wire.batch import HEADER_BYTES, SMALLEST_RECORD, Batch, Codec, TimestampType, split
from ottla.wire.codecs import DecompressionFailed, Scratch
from ottla.wire.kernels import decoding as dk
from ottla.wire.kernels import encoding as ek
from ottla.wire.kernels import scanning as sk
from ottla.wire.kernels import summing as uk
from ottla.wire.kernels import tallying as tk

from .areas import Areas, Plain, Strict
from .inputs import ENCODE

NOT_REACHED = 255
LIMIT_BYTES = 1 << 20
END_OF_LOG = (1 << 63) - 1


class Outcome(NamedTuple):
    """What a kernel answered (`NOT_REACHED`: the input was refused before) and a checksum of what it wrote."""

    code: int
    checksum: int


class Broken(Exception):
    """A promise that did not hold; the text says which."""


class Question(NamedTuple):
    """What to decode. Taken from the leader epoch of the first batch, which decoding has no use for."""

    want: int
    start: int
    stop: int

    @classmethod
    def of(cls, batch: Batch) -> Question:
        epoch = batch.header.leader_epoch
        want = epoch & 63
        if not epoch & 0xC0:
            return cls(want, 0, END_OF_LOG)
        start = min(batch.header.base_offset + (epoch >> 8 & 7), END_OF_LOG)
        return cls(want, start, min(start + (epoch >> 11 & 7), END_OF_LOG))


def run(data: bytes, areas: Areas, number: int) -> Outcome:
    """Run one input; raises what the kernel raises, and `Broken` when the results contradict each other."""
    areas.begin(number)
    with np.errstate(over="ignore"):
        if data.startswith(ENCODE):
            return _encode(data, areas)
        scanned = _scan(data, areas)
        areas.begin(number)
        outcome = _decode(data, areas)
        areas.begin(number)
        return Outcome(outcome.code, outcome.checksum ^ scanned ^ _tally(data, areas, outcome.code))


class _Records(NamedTuple):
    """Records of one or more batches in one piece of memory, and the table that says where."""

    data: bytes
    segments: list[tuple[int, ...]]
    question: Question


def _records(data: bytes) -> _Records | None:
    batches = []
    try:
        for batch in split(data):
            header = batch.header
            if not (header.is_control or header.count == 0):
                batches.append(batch)
    except WireError:
        pass
    if not batches:
        return None
    question = Question.of(batches[0])
    if batches[0].header.codec is not Codec.NONE:
        return _decompressed(batches[0], question)
    plain = [batch for batch in batches if batch.header.codec is Codec.NONE]
    first = plain[0].start + HEADER_BYTES
    segments = [_segment(b, b.start + HEADER_BYTES - first, len(b.records)) for b in plain]
    return _Records(data[first : first + segments[-1][dk.END]], segments, question)


def _decompressed(batch: Batch, question: Question) -> _Records | None:
    scratch = Scratch()
    try:
        _, size = scratch.append(batch.header.codec, batch.records, LIMIT_BYTES)
    except DecompressionFailed:
        return None
    if batch.header.count * SMALLEST_RECORD > size:
        return None
    return _Records(scratch.view().tobytes(), [_segment(batch, 0, size)], question)


def _segment(batch: Batch, start: int, size: int) -> tuple[int, ...]:
    h = batch.header
    append_time = int(h.timestamp_type is TimestampType.LOG_APPEND)
    times = (h.base_timestamp, h.max_timestamp, append_time)
    return (start, start + size, h.base_offset, h.last_offset_delta, h.count, *times)


class _Columns:
    """The arrays that `ColumnBuffers` would make, of exactly the size that the kernel may use."""

    def __init__(self, areas: Areas, want: int, count: int, size: int) -> None:
        self._areas = areas
        self.state = areas.int64s(dk.STATE_FIELDS)
        self.sums = areas.sums()
        self.offsets = areas.int64s(count if want & dk.OFFSET else 0)
        self.timestamps = areas.int64s(count if want & dk.TIMESTAMP else 0)
        self.key = self._binary(count, size, want & dk.KEY)
        self.value = self._binary(count, size, want & dk.VALUE)
        listed = count if want & dk.HEADERS else 0
        self.header_ends = areas.int32s(listed + 1)
        self.header_valid = areas.octets((listed + 7) // 8, 0xFF)
        self.header_keys = self._binary(count, size, want & dk.HEADERS)
        self.header_values = self._binary(count, size, want & dk.HEADERS)

    def _binary(self, rows: int, size: int, is_wanted: int) -> dk.BinaryOut:
        rows, size = (rows, size) if is_wanted else (0, 0)
        return dk.BinaryOut(
            self._areas.int32s(rows + 1), self._areas.octets(size), self._areas.octets((rows + 7) // 8, 0xFF)
        )

    def grow_headers(self) -> None:
        filled = int(self.state[dk.HEADER])
        room = 4 * (len(self.header_keys.ends) + int(self.state[dk.NEEDED]))
        self.header_keys = self._grown(self.header_keys, room, filled)
        self.header_values = self._grown(self.header_values, room, filled)

    def _grown(self, old: dk.BinaryOut, rows: int, filled: int) -> dk.BinaryOut:
        ends, valid = self._areas.int32s(rows + 1), self._areas.octets((rows + 7) // 8, 0xFF)
        for i in range(filled + 1):
            ends[i] = old.ends[i]
        for i in range((filled + 7) // 8):
            valid[i] = old.valid[i]
        return dk.BinaryOut(ends, old.data, valid)

    def headers(self) -> dk.HeadersOut:
        return dk.HeadersOut(self.header_ends, self.header_valid, self.header_keys, self.header_values)

    def checksum(self) -> int:
        total = 0
        for area in (self.state, self.sums, self.offsets, self.timestamps, *self.key, *self.value):
            total = self._areas.checksum(area, total)
        for area in (self.header_ends, self.header_valid, *self.header_keys, *self.header_values):
            total = self._areas.checksum(area, total)
        return total


def _decode(data: bytes, areas: Areas) -> Outcome:
    records = _records(data)
    if records is None:
        return Outcome(NOT_REACHED, 0)
    count = sum(segment[dk.COUNT] for segment in records.segments)
    size = sum(segment[dk.END] - segment[dk.START] for segment in records.segments)
    columns = _Columns(areas, records.question.want, count, size)
    source, table = areas.given(records.data), areas.table(records.segments)
    code = _walk(source, table, columns, records.question)
    _check_walk(code, columns, len(records.data), count)
    return Outcome(code, columns.checksum())


def _tally(data: bytes, areas: Areas, expected: int) -> int:
    """Count the same records by time: with the same answer as decoding them, and as many of them; a checksum."""
    records = _records(data)
    if records is None:
        return 0
    rng = Random(len(data))
    bucket, most = rng.choice((0, 1, 1000, 600_000)), rng.choice((1, 2, 100))
    source, table, state = areas.given(records.data), areas.table(records.segments), areas.int64s(tk.STATE_FIELDS)
    rows, sums = areas.rows(most, tk.ROW_FIELDS), areas.sums_of(most)
    counted, total = 0, 0
    while True:
        code = int(tk.tally_records(source, table, state, *records.question[1:], bucket, rows, sums))
        used = int(state[tk.ROWS])
        if not 0 <= used <= most or not 0 <= int(state[tk.POSITION]) <= len(records.data):
            raise Broken(f"{used} of {most} rows are used, at byte {int(state[tk.POSITION])} of {len(records.data)}")
        counted += sum(int(row[tk.RECORDS]) for row in rows[:used])
        for row, words in zip(rows[:used], sums[:used], strict=True):
            total = areas.checksum(words, areas.checksum(row, total))
        if code != tk.FULL:
            break
        state[tk.ROWS] = 0
    if code != expected:
        raise Broken(f"counting answers {code}, decoding {expected}")
    if counted > sum(segment[dk.COUNT] for segment in records.segments):
        raise Broken(f"{counted} records were counted, more than there are")
    return total


def _scan(data: bytes, areas: Areas) -> int:
    """The batches of the input as one span, and of what lies in it from some byte on as another; a checksum."""
    rng = Random(len(data))
    middle = rng.randrange(len(data) + 1)
    beyond = rng.choice((0, 0, 0, 1, -1 - len(data)))
    spans: list[tuple[int, ...]] = [(0, len(data)), (middle, len(data) + beyond), (0, middle)]
    most = rng.choice((0, 1, 1000))
    source, places = areas.given(data), areas.table(spans)
    batches, verdicts, state = areas.rows(most, sk.BATCH_FIELDS), areas.rows(3, sk.VERDICT_FIELDS), areas.int64s(3)
    code = int(sk.scan_batches(source, places, batches, verdicts, state))
    if code == sk.FULL and int(state[sk.ROW]) != most:
        raise Broken(f"{int(state[sk.ROW])} of {most} rows are used, and more are asked for")
    verdict_rows = [[int(field) for field in verdict] for verdict in verdicts]
    if code == sk.DONE and sum(verdict[sk.COUNT] for verdict in verdict_rows) != int(state[sk.ROW]):
        raise Broken("there are more or fewer batches than the verdicts say")
    first = 0
    for number, (start, end) in enumerate(spans[: int(state[sk.SPAN])]):
        count = verdict_rows[number][sk.COUNT]
        _check_span(data, start, end, verdict_rows[number], [int(row[sk.AT]) for row in batches[first : first + count]])
        first += count
    total = areas.checksum(state, code)
    for row in (*verdicts, *batches):
        total = areas.checksum(row, total)
    return total


def _check_span(data: bytes, start: int, end: int, verdict: list[int], starts: list[int]) -> None:
    """The kernel and `split` must agree: on the batches, and on whether anything is wrong."""
    if not 0 <= start <= end <= len(data):
        if verdict[sk.IS_SOUND] or starts:
            raise Broken("a span that is not there was found sound")
        return
    expected: list[int] = []
    reached, is_sound = 0, True
    try:
        for batch in split(data[start:end]):
            if batch.header.base_offset < reached:
                is_sound = False
                break
            expected.append(start + batch.start)
            reached = batch.header.next_offset
    except WireError:
        is_sound = False
    if (starts, bool(verdict[sk.IS_SOUND])) != (expected, is_sound):
        raise Broken(f"the kernel found {starts} ({verdict}), the batches are at {expected}, sound: {is_sound}")
    if expected and verdict[sk.NEXT] != reached:
        raise Broken(f"the kernel reached {verdict[sk.NEXT]}, the batches end at {reached}")


def _walk(source: Any, table: Any, columns: _Columns, question: Question) -> int:
    for _ in range(100):
        code = dk.decode_records(
            source,
            table,
            columns.state,
            *question,
            columns.offsets,
            columns.timestamps,
            columns.key,
            columns.value,
            columns.headers(),
            columns.sums,
        )
        if code != dk.GROW_HEADERS:
            return int(code)
        columns.grow_headers()
    raise Broken("room for headers was asked for a hundred times")


def _check_walk(code: int, columns: _Columns, size: int, count: int) -> None:
    position, rows = int(columns.state[dk.POSITION]), int(columns.state[dk.ROW])
    if code != dk.DONE and code not in dk.REASONS:
        raise Broken(f"answer {code} has no meaning")
    if not 0 <= position <= size:
        raise Broken(f"position {position} is outside the {size} bytes")
    if not 0 <= rows <= count:
        raise Broken(f"{rows} rows from {count} records")


class _Plan(NamedTuple):
    """Columns for the encoder."""

    count: int  # type: ignore[assignment]
    key: ek.BinaryIn
    value: ek.BinaryIn
    headers: ek.HeadersIn
    times: Any
    rows: Any


def _lengths(rng: Random, count: int) -> list[int]:
    return [rng.choice((0, 1, 7, 8, 15, 16, 17, 63, 64, 130)) for _ in range(count)]


def _ends(rng: Random, lengths: list[int]) -> list[int]:
    ends = [rng.choice((0, 0, 3))]  # a slice of a larger array begins somewhere
    for length in lengths:
        ends.append(ends[-1] + length)
    return ends


def _binary_in(rng: Random, areas: Areas, count: int, may_be_null: bool) -> ek.BinaryIn:
    if may_be_null and rng.random() < 0.2:
        return ek.BinaryIn(areas.numbers([]), areas.given(b""), areas.given(b""))
    ends = _ends(rng, _lengths(rng, count))
    nulls = bytes(rng.randrange(2) for _ in range(count)) if may_be_null and rng.random() < 0.5 else b""
    return ek.BinaryIn(areas.numbers(ends), areas.given(rng.randbytes(ends[-1])), areas.given(nulls))


def _headers_in(rng: Random, areas: Areas, count: int) -> ek.HeadersIn:
    if rng.random() < 0.4:
        nothing = ek.BinaryIn(areas.numbers([]), areas.given(b""), areas.given(b""))
        return ek.HeadersIn(areas.numbers([]), areas.given(b""), nothing, nothing)
    ends = _ends(rng, [rng.randrange(4) for _ in range(count)])
    nulls = bytes(rng.randrange(2) for _ in range(count)) if rng.random() < 0.4 else b""
    keys, values = (_binary_in(rng, areas, ends[-1], may_be_null) for may_be_null in (False, True))
    return ek.HeadersIn(areas.numbers(ends), areas.given(nulls), keys, values)


def _plan(rng: Random, areas: Areas) -> _Plan:
    count = rng.randrange(1, 7)
    key, value = (_binary_in(rng, areas, count, True) for _ in range(2))
    headers = _headers_in(rng, areas, count)
    times = [rng.choice((0, 5, 1_700_000_000_000, 2**53)) for _ in range(count)] if rng.random() < 0.5 else []
    rows = [rng.randrange(count) for _ in range(rng.randrange(1, 9))] if rng.random() < 0.3 else []
    return _Plan(count, key, value, headers, areas.numbers(times), areas.numbers(rows))


def _encode(data: bytes, areas: Areas) -> Outcome:
    rng = Random(data)
    plan = _plan(rng, areas)
    room = rng.choice((0, 1, 6, 7, 50, rng.randrange(2000), 4000))
    limits = rng.choice((1, 60, 4000)), rng.choice((1, 2, 1000))
    hashing = rng.random() < 0.5
    out, sums, result = _written(plan, areas, room, limits, hashing)
    fields = [int(field) for field in result]
    size = fields[ek.SIZE]
    _check_written(out, sums, fields, hashing, strict=isinstance(areas, Strict))
    exact, _, again = _written(plan, areas, size, limits, hashing)
    if bytes(exact) != bytes(out[:size]) or int(again[ek.COUNT]) != fields[ek.COUNT]:
        raise Broken(f"in room for exactly its {size} bytes, another batch was written")
    together = _written_together(plan, areas, room, limits, hashing)
    if fields[ek.COUNT] and not bytes(together).startswith(bytes(out[:size])):
        raise Broken("several batches at once do not begin with the first one")
    in_slots = _written_in_slots(plan, areas, rng.choice((1, 50, 300)), limits)
    total = _counted(plan, areas, fields[ek.NEXT_ROW], sums if hashing else None)
    for area in (out, sums, result, together, in_slots):
        total = areas.checksum(area, total)
    return Outcome(fields[ek.COUNT], total)


def _written(plan: _Plan, areas: Areas, room: int, limits: tuple[int, int], hashing: bool) -> tuple[Any, Any, Any]:
    out, sums, result = areas.octets(room), areas.sums(), areas.int64s(ek.RESULT_FIELDS)
    last = len(plan.rows) or plan.count
    columns = (plan.key, plan.value, plan.headers, plan.times, 1_600_000_000_000)
    ek.encode_records(out, 0, *limits, plan.rows, 0, last, *columns, hashing, sums, result)
    return out, sums, result


def _counted(plan: _Plan, areas: Areas, last: int, expected: Any) -> int:
    """Count the rows that were written by time: as many, with the same sum; a checksum."""
    state, rows, sums = areas.int64s(uk.STATE_FIELDS), areas.rows(8, tk.ROW_FIELDS), areas.sums_of(8)
    columns = (plan.key, plan.value, plan.headers, plan.times, 1_600_000_000_000)
    if uk.tally_rows(plan.rows, 0, last, *columns, 1000, state, rows, sums) != uk.DONE:
        raise Broken(f"{last} rows are in more than 8 buckets")
    used = int(state[uk.WRITTEN])
    if sum(int(row[tk.RECORDS]) for row in rows[:used]) != last:
        raise Broken(f"{last} rows were not all counted")
    total = sum(int(words[1]) << 64 | int(words[0]) for words in sums[:used]) & ((1 << 128) - 1)
    if expected is not None and total != int(expected[1]) << 64 | int(expected[0]):
        raise Broken("the rows do not have the fingerprint of what was written")
    checksum = 0
    for row, words in zip(rows[:used], sums[:used], strict=True):
        checksum = areas.checksum(words, areas.checksum(row, checksum))
    return checksum


def _written_together(plan: _Plan, areas: Areas, room: int, limits: tuple[int, int], hashing: bool) -> Any:
    """Several batches in one call; each must be readable."""
    most = 3
    out, results, sums = areas.octets(room), areas.results(most), areas.sums_of(most)
    last = len(plan.rows) or plan.count
    columns = (plan.key, plan.value, plan.headers, plan.times, 1_600_000_000_000)
    count = ek.encode_batches(out, *limits, plan.rows, 0, last, *columns, hashing, sums, results)
    start, row = 0, 0
    for batch in range(count):
        fields = [int(field) for field in results[batch]]
        if not row < fields[ek.NEXT_ROW] <= last or fields[ek.COUNT] != fields[ek.NEXT_ROW] - row:
            raise Broken(f"batch {batch} has {fields[ek.COUNT]} records and ends before row {fields[ek.NEXT_ROW]}")
        _check_written(out[start:], sums[batch], fields, hashing, strict=isinstance(areas, Strict))
        start, row = start + fields[ek.SIZE], fields[ek.NEXT_ROW]
    return out


def _written_in_slots(plan: _Plan, areas: Areas, slot: int, limits: tuple[int, int]) -> Any:
    """Runs of rows for two of three slots, and for none; each slot must be readable, and the rest as it was."""
    last = len(plan.rows) or plan.count
    rows = plan.rows if len(plan.rows) else areas.numbers(list(range(last)))
    edges, partitions = areas.numbers([0, last // 3, last // 2, last]), areas.numbers([2, -1, 0])
    memory, reached, results = areas.octets(3 * slot, 0xEE), areas.int64s(3), areas.results(3)
    columns = (plan.key, plan.value, plan.headers, plan.times, 1_600_000_000_000)
    ek.encode_runs(memory, slot, min(slot, limits[0]), limits[1], rows, edges, partitions, *columns, reached, results)
    for partition, begin, got in ((2, 0, reached[0]), (1, last // 3, reached[1]), (0, last // 2, reached[2])):
        fields = [int(field) for field in results[partition]]
        if fields[ek.COUNT] != int(got) - begin or fields[ek.SIZE] > slot:
            raise Broken(f"slot {partition} of {slot} bytes: {fields} after rows {begin} to {got}")
        area = memory[partition * slot : (partition + 1) * slot]
        _check_written(area, areas.sums(), fields, False, strict=isinstance(areas, Strict))
        if bytes(area[fields[ek.SIZE] :]).strip(b"\xee"):
            raise Broken(f"slot {partition} was written to behind its {fields[ek.SIZE]} bytes")
    return memory


def _check_written(out: Any, sums: Any, result: list[int], hashing: bool, *, strict: bool) -> None:
    """What was written must be readable: the same number of records, with the same fingerprint."""
    size, count = result[ek.SIZE], result[ek.COUNT]
    if not 0 <= size <= len(out):
        raise Broken(f"{size} bytes were written to {len(out)}")
    if count == 0:
        return
    written = bytes(out[:size])
    question = Question(dk.FINGERPRINT, 0, END_OF_LOG)
    areas: Areas = Strict() if strict else Plain()
    columns = _Columns(areas, question.want, count, size)
    segments: list[tuple[int, ...]] = [(0, size, 0, count - 1, count, result[ek.BASE_TIME], result[ek.MAX_TIME], 0)]
    code = _walk(areas.given(written), areas.table(segments), columns, question)
    if code != dk.DONE or int(columns.state[dk.ROW]) != count:
        raise Broken(f"what was written cannot be read: {dk.REASONS.get(code, code)}")
    if hashing and list(columns.sums) != list(sums):
        raise Broken("the fingerprint of what was written is another one")
