"""What the syslog kernel must find in a message, said with regular expressions and `datetime`."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from ottla.wire.kernels import syslog as k

NO_FIELDS = {"host": b"", "app": b"", "procid": b"", "msgid": b"", "data": b""}


class Clock(NamedTuple):
    """As in `wire.kernels.syslog`."""

    now: int
    year: int
    before: int = 0
    after: int = 0
    switch: int = 0

    def utc(self, wall: int) -> int:
        return wall - self.before if wall - self.after < self.switch else wall - self.after


class Found(NamedTuple):
    """One message. `time` is None for none."""

    kind: int
    error: int
    priority: int
    time: int | None
    fields: dict[str, bytes]
    message: bytes


_MONTHS = b"Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split()
_PRIORITY = re.compile(rb"<(\d{1,3})>")
_VERSION = re.compile(rb"(\d{1,3}) ")
_CLOCK = rb"([01]\d|2[0-3]):([0-5]\d):([0-5]\d)(?:\.(\d{1,9}))?(?!\.)"
_INTERNET = re.compile(rb"(\d{4})-(\d\d)-(\d\d)T" + _CLOCK + rb"(Z|[+-](?:[01]\d|2[0-3]):[0-5]\d)?")
_BSD = re.compile(rb"([A-Z][a-z]{2}) ( ?)(\d{1,2}) (?:(\d{4}) )?" + _CLOCK + rb"( UTC)?")
_WORD = rb"([\x21-\x7e]+) "
_HEADER = re.compile(_WORD * 4)
_NAME = rb"[\x21\x23-\x3c\x3e-\x5c\x5e-\x7e]+"
_PARAMETER = rb' [\x21\x23-\x3c\x3e-\x5c\x5e-\x7e]+="(?:\\[\x00-\xff]|[^"\\\]])*"'
_DATA = re.compile(rb"(?:\[" + _NAME + rb"(?:" + _PARAMETER + rb")*\])+")
_SEQUENCE = re.compile(rb"(?:\d{1,10}: )?[*.]?")
_HOST = re.compile(rb"([\x21-\x7e]+) ")
_TAG = re.compile(rb"([\x21-\x7e][\x21-\x5a\x5c-\x7e]{0,127}?)(?::(?= |$)|(?=\[))")
_PID = re.compile(rb"\[([\x20-\x5c\x5e-\x7e]{0,128})\](?::(?= |$)|(?= |$))")


def parse(message: bytes, clock: Clock) -> Found:
    """Parse one message, as the kernel does."""
    message = message.rstrip(b"\r\n\0")
    priority = _PRIORITY.match(message)
    if message.startswith(b"<") and (priority is None or int(priority[1]) > 191):
        return Found(k.UNPARSED, k.BAD_PRIORITY, -1, None, NO_FIELDS, message)
    if priority is None:
        time, fields, rest = _bsd(message, clock)
        if time is None:
            return Found(k.UNPARSED, k.NO_PRIORITY, -1, None, NO_FIELDS, message)
        return Found(k.BSD, 0, k.IMPLIED_PRIORITY, time, fields, rest)
    number, rest = int(priority[1]), message[priority.end() :]
    version = _VERSION.match(rest)
    if version is None:
        return Found(k.BSD, 0, number, *_bsd(rest, clock))
    if version[1] != b"1":
        return Found(k.UNPARSED, k.BAD_VERSION, number, None, NO_FIELDS, message)
    found = _ietf(rest[version.end() :], clock)
    if isinstance(found, int):
        return Found(k.UNPARSED, found, number, None, NO_FIELDS, message)
    return Found(k.IETF, 0, number, *found)


def _ietf(rest: bytes, clock: Clock) -> tuple[int | None, dict[str, bytes], bytes] | int:
    time = None
    if rest.startswith(b"-"):
        rest = rest[1:]
    else:
        stamp = _internet(rest, clock, is_local_allowed=False)
        if stamp is None:
            return k.BAD_TIME
        time, size = stamp
        rest = rest[size:]
    if not rest.startswith(b" "):
        return k.BAD_TIME
    header = _HEADER.match(rest, 1)
    if header is None:
        return k.BAD_HEADER
    names = ("host", "app", "procid", "msgid")
    fields = {name: b"" if word == b"-" else word for name, word in zip(names, header.groups(), strict=True)}
    rest = rest[header.end() :]
    data = b"-" if rest.startswith(b"-") else (found[0] if (found := _DATA.match(rest)) else b"")
    rest = rest[len(data) :]
    if not data or (rest and not rest.startswith(b" ")):
        return k.BAD_DATA
    fields["data"] = b"" if data == b"-" else data
    return time, fields, rest[1:].removeprefix(b"\xef\xbb\xbf")


def _bsd(rest: bytes, clock: Clock) -> tuple[int | None, dict[str, bytes], bytes]:
    start = _SEQUENCE.match(rest)
    assert start is not None
    body = rest[start.end() :]
    stamp = _bsd_time(body, clock) or _internet(body, clock, is_local_allowed=True)
    if stamp is None or body[stamp[1] :][:1] not in (b"", b" ", b":"):
        return None, *_tagged(rest, b"")
    body = body[stamp[1] :]
    host = b""
    if body.startswith(b":"):
        body = body[1:].removeprefix(b" ")
    elif body:
        body = body[1:]
        word, tag = _HOST.match(body), _tag_end(body)
        if word is not None and (tag is None or tag >= word.end(1)):
            host, body = word[1], body[word.end() :]
    return stamp[0], *_tagged(body, host)


def _tag_end(body: bytes) -> int | None:
    tag = _TAG.match(body)
    return None if tag is None else tag.end(1)


def _tagged(body: bytes, host: bytes) -> tuple[dict[str, bytes], bytes]:
    fields = NO_FIELDS | {"host": host}
    tag = _TAG.match(body)
    if tag is None:
        return fields, body
    end = tag.end()
    if body[end:].startswith(b"["):
        pid = _PID.match(body, end)
        if pid is None:
            return fields, body
        fields["procid"] = pid[1]
        end = pid.end()
    fields["app"] = tag[1]
    return fields, body[end:].removeprefix(b" ")


def _internet(text: bytes, clock: Clock, *, is_local_allowed: bool) -> tuple[int, int] | None:
    found = _INTERNET.match(text)
    if found is None:
        return None
    year, month, day = map(int, found.group(1, 2, 3))
    wall = _wall(year, month, day, found.group(4, 5, 6, 7))
    if wall is None:
        return None
    zone = found[8]
    if zone is None:
        # A sign that begins no offset makes it no time at all.
        if not is_local_allowed or text[found.end() :][:1] in (b"+", b"-"):
            return None
        return clock.utc(wall), found.end()
    if zone == b"Z":
        return wall, found.end()
    ahead = (int(zone[1:3]) * 60 + int(zone[4:])) * 60_000
    return wall - (ahead if zone[:1] == b"+" else -ahead), found.end()


def _bsd_time(text: bytes, clock: Clock) -> tuple[int, int] | None:
    found = _BSD.match(text)
    if found is None or found[1] not in _MONTHS:
        return None
    month, day = _MONTHS.index(found[1]) + 1, int(found[3])
    years = [int(found[4])] if found[4] else [clock.year - 1, clock.year, clock.year + 1]
    walls = [wall for year in years if (wall := _wall(year, month, day, found.group(5, 6, 7, 8))) is not None]
    times = [wall if found[9] else clock.utc(wall) for wall in walls]
    if not times:
        return None
    return min(times, key=lambda time: abs(time - clock.now)), found.end()


def _wall(year: int, month: int, day: int, clock: tuple[bytes, ...]) -> int | None:
    hour, minute, second, fraction = clock
    try:
        # The calendar repeats every 400 years, and `datetime` knows no year 0.
        moment = datetime(year % 400 + 2000, month, day, int(hour), int(minute), int(second), tzinfo=UTC)
    except ValueError:
        return None
    cycles = (year - (year % 400 + 2000)) // 400
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    return (
        (moment - epoch) // timedelta(milliseconds=1)
        + cycles * 146_097 * 86_400_000
        + int((fraction or b"0").ljust(3, b"0")[:3])
    )
