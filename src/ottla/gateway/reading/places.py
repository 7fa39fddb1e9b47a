"""Where a client is in a topic, as a text that it sends back to continue: a cursor. Pure.

A topic's id, and an offset for each partition, with the stop of a bounded read, go in; opaque text comes out, and back.
A cursor belongs to one topic and not to its name: with the id, one from before the topic was deleted and created again
is noticed.
"""

from __future__ import annotations

import base64
import binascii
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from uuid import UUID

_VERSION = 1
_LONGEST = 16_000
_MOST_PARTITIONS = 200_000
_LARGEST = (1 << 63) - 1
_NO_ID = UUID(int=0)


@dataclass(frozen=True, slots=True)
class Cursor:
    """A place in all partitions of a read. `stops` is empty for a read without an end."""

    topic_id: UUID | None
    offsets: dict[int, int]
    """The next offset by partition."""
    stops: dict[int, int]

    @property
    def is_over(self) -> bool:
        """Whether a bounded read has come to its end everywhere."""
        return bool(self.stops) and all(self.offsets[each] >= stop for each, stop in self.stops.items())

    def moved(self, partition: int, offset: int) -> Cursor:
        """Return the cursor with another offset in one partition."""
        return Cursor(self.topic_id, self.offsets | {partition: offset}, self.stops)

    def text(self) -> str:
        """Return what a client sends back."""
        numbers, _ = self._numbers()
        return _as_text(self._head() + _varints(numbers))

    def texts(self, partition: int) -> Callable[[int], str]:
        """Return a function from an offset to `moved(partition, offset).text()`, for many offsets."""
        numbers, places = self._numbers()
        place = places[partition]
        before, after = self._head() + _varints(numbers[:place]), _varints(numbers[place + 1 :])
        return lambda offset: _as_text(before + _varints((offset,)) + after)

    def _head(self) -> bytes:
        return bytes([_VERSION]) + (self.topic_id or _NO_ID).bytes

    def _numbers(self) -> tuple[list[int], dict[int, int]]:
        """Return the numbers of the text, and where among them the offset of each partition is."""
        numbers: list[int] = [len(self.offsets), int(bool(self.stops))]
        places: dict[int, int] = {}
        before = -1
        for partition, offset in sorted(self.offsets.items()):
            numbers += [partition - before - 1, offset]
            places[partition] = len(numbers) - 1
            if self.stops:
                numbers.append(self.stops[partition])
            before = partition
        return numbers, places


def parse(text: str) -> Cursor:
    """Return the cursor of a text. Raises `ValueError` if it is none."""
    if not 0 < len(text) <= _LONGEST or not text.isascii():
        raise ValueError("it has no cursor's length")
    try:
        data = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except binascii.Error as error:
        raise ValueError("it is not base64") from error
    body, check = data[:-4], data[-4:]
    if len(body) < 19 or body[0] != _VERSION or zlib.crc32(body).to_bytes(4, "big") != check:
        raise ValueError("it is cut or changed")
    numbers = _numbers(body[17:])
    count, has_stops = numbers[0], numbers[1]
    width = 3 if has_stops else 2
    if count > _MOST_PARTITIONS or has_stops > 1 or len(numbers) != 2 + count * width:
        raise ValueError("it is cut or changed")
    offsets: dict[int, int] = {}
    stops: dict[int, int] = {}
    before = -1
    for at in range(2, len(numbers), width):
        before += numbers[at] + 1
        offsets[before] = numbers[at + 1]
        if has_stops:
            stops[before] = numbers[at + 2]
    topic_id = UUID(bytes=body[1:17])
    return Cursor(None if topic_id == _NO_ID else topic_id, offsets, stops)


def _as_text(body: bytes) -> str:
    return base64.urlsafe_b64encode(body + zlib.crc32(body).to_bytes(4, "big")).rstrip(b"=").decode()


def _varints(numbers: Iterable[int]) -> bytes:
    body = bytearray()
    for number in numbers:
        while number > 0x7F:
            body.append(number & 0x7F | 0x80)
            number >>= 7
        body.append(number)
    return bytes(body)


def _numbers(body: bytes) -> list[int]:
    numbers: list[int] = []
    value = shift = 0
    for byte in body:
        value |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            if value > _LARGEST:
                raise ValueError("it has a number that no offset can be")
            numbers.append(value)
            value = shift = 0
        elif shift > 63:
            raise ValueError("it has a number that no offset can be")
    if shift or len(numbers) < 2:
        raise ValueError("it is cut or changed")
    return numbers
