"""Parses syslog messages of RFC 5424 and RFC 3164, many in one pass.

Comes in: bytes, a span for each message, and the clock: this moment, its year, and the offsets of local time. Goes out:
a row for each with where its fields are. A digit and a space behind the priority mean RFC 5424, anything else RFC 3164.
What cannot be parsed has a row, too, with a code that says why.
"""

from __future__ import annotations

from typing import Any

from ottla.wire.kernels.calling import inlined, kernel, reads, table
from ottla.wire.kernels.framing import SPAN_FIELDS, SPAN_MARK, SPAN_START, SPAN_STOP, WHOLE

# Columns of a row. A field that is missing begins where it stops. START and STOP are without what ends the frame.
(PRI, KIND, ERROR, TIME, HOST, HOST_STOP, APP, APP_STOP, PROCID, PROCID_STOP, MSGID, MSGID_STOP) = range(12)
(DATA, DATA_STOP, MESSAGE, START, STOP) = range(12, 17)
ROW_FIELDS = 17

# Kinds of messages.
UNPARSED, BSD, IETF = range(3)

# What is wrong. The marks of a frame come first, `framing.TRUNCATED` and so on.
NO_PRIORITY, BAD_PRIORITY, BAD_VERSION, BAD_TIME, BAD_HEADER, BAD_DATA = range(4, 10)
ERRORS = 10

# Fields of the clock, in milliseconds but for the year. Local time is BEFORE ahead of UTC until SWITCH, then AFTER.
NOW, YEAR, BEFORE, AFTER, SWITCH = range(5)
CLOCK_FIELDS = 5

NO_TIME = -(1 << 62)
UNFIT = -1
IMPLIED_PRIORITY = 13
"""The priority of a message without one: RFC 3164, 4.3.3."""

_MOST_PRIORITY, _MOST_TAG, _MOST_SEQUENCE = 191, 128, 10
_DAY_MS, _MINUTE_MS = 86_400_000, 60_000
_NUL, _LF, _CR = 0, 10, 13
_SPACE, _QUOTE, _STAR, _PLUS, _DASH, _DOT, _ZERO, _NINE, _COLON = 32, 34, 42, 43, 45, 46, 48, 57, 58
_LESS, _EQUALS, _GREATER, _T, _Z, _OPEN, _BACKSLASH, _CLOSE = 60, 61, 62, 84, 90, 91, 92, 93
_FIRST_PRINTABLE, _LAST_PRINTABLE = 33, 126


@inlined
def _byte(data: Any, at: Any, stop: Any) -> Any:
    """Return the byte at `at`, -1 behind the end."""
    return int(data[at]) if at < stop else -1


@inlined
def _digits(data: Any, at: Any, stop: Any, most: Any) -> Any:
    """Read up to `most` digits. Returns (value, how many)."""
    value = 0
    count = 0
    while count < most and at + count < stop and _ZERO <= data[at + count] <= _NINE:
        value = value * 10 + int(data[at + count]) - _ZERO
        count += 1
    return value, count


@inlined
def _pair(data: Any, at: Any, stop: Any) -> Any:
    """Read exactly two digits, -1 if they are not there."""
    value, count = _digits(data, at, stop, 2)
    return value if count == 2 else -1


@inlined
def _days_in(year: Any, month: Any) -> Any:
    """Return the number of days in a month."""
    if month == 2:
        return 29 if year % 4 == 0 and (year % 100 != 0 or year % 400 == 0) else 28
    return 30 if month == 4 or month == 6 or month == 9 or month == 11 else 31


@inlined
def _days_to(year: Any, month: Any, day: Any) -> Any:
    """Return the days from 1970 to a date of the Gregorian calendar."""
    if month <= 2:
        year -= 1
        month += 12
    return 365 * year + year // 4 - year // 100 + year // 400 + (153 * (month - 3) + 2) // 5 + day - 719469


@inlined
def _fraction(data: Any, at: Any, stop: Any) -> Any:
    """Read a point and up to nine digits of a second. Returns (milliseconds, where they end), -1 without digits."""
    if _byte(data, at, stop) != _DOT:
        return 0, at
    value, count = _digits(data, at + 1, stop, 9)
    if count == 0:
        return -1, at
    at += 1 + count
    while count < 3:
        value *= 10
        count += 1
    while count > 3:
        value //= 10
        count -= 1
    return value, at


@inlined
def _clock_time(data: Any, at: Any, stop: Any) -> Any:
    """Read hh:mm:ss with a fraction. Returns (milliseconds of the day, where it ends), -1 if it is none."""
    hour = _pair(data, at, stop)
    minute = _pair(data, at + 3, stop)
    second = _pair(data, at + 6, stop)
    if hour < 0 or hour > 23 or minute < 0 or minute > 59 or second < 0 or second > 59:
        return -1, at
    if data[at + 2] != _COLON or data[at + 5] != _COLON:
        return -1, at
    part, following = _fraction(data, at + 8, stop)
    if part < 0:
        return -1, at
    return ((hour * 60 + minute) * 60 + second) * 1000 + part, following


@inlined
def _utc(wall: Any, clock: Any) -> Any:
    """Return local time as UTC."""
    utc = wall - clock[AFTER]
    return wall - clock[BEFORE] if utc < clock[SWITCH] else utc


@inlined
def _internet_time(data: Any, at: Any, stop: Any, clock: Any, is_local_allowed: Any) -> Any:
    """Read a time of RFC 3339. Returns (milliseconds since 1970, where it ends), NO_TIME if it is none."""
    year, digits = _digits(data, at, stop, 4)
    month = _pair(data, at + 5, stop)
    day = _pair(data, at + 8, stop)
    if digits != 4 or month < 1 or month > 12 or day < 1 or day > _days_in(year, month):
        return NO_TIME, at
    if data[at + 4] != _DASH or data[at + 7] != _DASH or _byte(data, at + 10, stop) != _T:
        return NO_TIME, at
    part, at = _clock_time(data, at + 11, stop)
    if part < 0:
        return NO_TIME, at
    wall = _days_to(year, month, day) * _DAY_MS + part
    sign = _byte(data, at, stop)
    if sign == _Z:
        return wall, at + 1
    if sign in (_PLUS, _DASH):
        hours = _pair(data, at + 1, stop)
        minutes = _pair(data, at + 4, stop)
        if hours < 0 or hours > 23 or minutes < 0 or minutes > 59 or data[at + 3] != _COLON:
            return NO_TIME, at
        ahead = (hours * 60 + minutes) * _MINUTE_MS
        return wall - (ahead if sign == _PLUS else -ahead), at + 6
    if is_local_allowed:
        return _utc(wall, clock), at
    return NO_TIME, at


@inlined
def _month(data: Any, at: Any, stop: Any) -> Any:
    """Return the number of the month with this English abbreviation, 0 for none."""
    if stop - at < 3:
        return 0
    word = int(data[at]) << 16 | int(data[at + 1]) << 8 | int(data[at + 2])
    if word == 0x4A616E:
        return 1
    if word == 0x466562:
        return 2
    if word == 0x4D6172:
        return 3
    if word == 0x417072:
        return 4
    if word == 0x4D6179:
        return 5
    if word == 0x4A756E:
        return 6
    if word == 0x4A756C:
        return 7
    if word == 0x417567:
        return 8
    if word == 0x536570:
        return 9
    if word == 0x4F6374:
        return 10
    if word == 0x4E6F76:
        return 11
    return 12 if word == 0x446563 else 0


@inlined
def _nearest(month: Any, day: Any, part: Any, clock: Any, is_utc: Any) -> Any:
    """Return the time of a date without a year: of the year that brings it nearest to now. NO_TIME if there is none."""
    best = NO_TIME
    distance = 0
    for year in range(clock[YEAR] - 1, clock[YEAR] + 2):
        if day <= _days_in(year, month):
            wall = _days_to(year, month, day) * _DAY_MS + part
            time = wall if is_utc else _utc(wall, clock)
            away = abs(time - clock[NOW])
            if best == NO_TIME or away < distance:
                best = time
                distance = away
    return best


@inlined
def _bsd_time(data: Any, at: Any, stop: Any, clock: Any) -> Any:
    """Read `Mmm dd hh:mm:ss`, as Cisco writes it also with a year or UTC. Returns (time, where it ends)."""
    start = at
    month = _month(data, at, stop)
    if month == 0 or _byte(data, at + 3, stop) != _SPACE:
        return NO_TIME, start
    at += 5 if _byte(data, at + 4, stop) == _SPACE else 4
    day, digits = _digits(data, at, stop, 2)
    at += digits
    if digits == 0 or day < 1 or day > 31 or _byte(data, at, stop) != _SPACE:
        return NO_TIME, start
    year, digits = _digits(data, at + 1, stop, 4)
    has_year = digits == 4 and _byte(data, at + 5, stop) == _SPACE
    if has_year and day > _days_in(year, month):
        return NO_TIME, start
    part, at = _clock_time(data, at + (6 if has_year else 1), stop)
    if part < 0:
        return NO_TIME, start
    is_utc = stop - at >= 4 and data[at] == _SPACE and data[at + 1] == 85 and data[at + 2] == 84 and data[at + 3] == 67
    if has_year:
        wall = _days_to(year, month, day) * _DAY_MS + part
        time = wall if is_utc else _utc(wall, clock)
    else:
        time = _nearest(month, day, part, clock, is_utc)
    if time == NO_TIME:
        return NO_TIME, start
    return time, at + 4 if is_utc else at


@inlined
def _word(data: Any, at: Any, stop: Any) -> Any:
    """Return where the printable ASCII characters from `at` on end."""
    while at < stop and _FIRST_PRINTABLE <= data[at] <= _LAST_PRINTABLE:
        at += 1
    return at


@inlined
def _parameter(data: Any, at: Any, stop: Any) -> Any:
    """Pass over NAME="VALUE". Returns where it ends, -1 if it is none."""
    start = at
    while at < stop and _FIRST_PRINTABLE <= data[at] <= _LAST_PRINTABLE and data[at] != _EQUALS:
        if data[at] == _QUOTE or data[at] == _CLOSE:
            return -1
        at += 1
    if at == start or _byte(data, at, stop) != _EQUALS or _byte(data, at + 1, stop) != _QUOTE:
        return -1
    at += 2
    while at < stop and data[at] != _QUOTE:
        if data[at] == _CLOSE:
            return -1  # must be escaped
        at += 2 if data[at] == _BACKSLASH and at + 1 < stop else 1
    return at + 1 if at < stop else -1


@inlined
def _structured(data: Any, at: Any, stop: Any) -> Any:
    """Pass over the elements of structured data. Returns where they end, -1 if they are none."""
    while _byte(data, at, stop) == _OPEN:
        start = at + 1
        at = start
        while at < stop and _FIRST_PRINTABLE <= data[at] <= _LAST_PRINTABLE and data[at] != _CLOSE:
            if data[at] == _QUOTE or data[at] == _EQUALS:
                return -1
            at += 1
        if at == start:
            return -1
        while _byte(data, at, stop) == _SPACE:
            at = _parameter(data, at + 1, stop)
            if at < 0:
                return -1
        if _byte(data, at, stop) != _CLOSE:
            return -1
        at += 1
    return at


@inlined
def _field(data: Any, at: Any, stop: Any, row: Any, column: Any) -> Any:
    """Read a word and the space behind it into a row; "-" is a missing one. Returns where the next begins, or -1."""
    end = _word(data, at, stop)
    if end == at or _byte(data, end, stop) != _SPACE:
        return -1
    is_nil = end == at + 1 and data[at] == _DASH
    row[column] = at
    row[column + 1] = at if is_nil else end
    return end + 1


@inlined
def _read_ietf(data: Any, at: Any, stop: Any, row: Any, clock: Any) -> Any:
    """Read what follows the version and its space. Returns WHOLE or what is wrong."""
    if _byte(data, at, stop) == _DASH:
        at += 1
    else:
        time, at = _internet_time(data, at, stop, clock, False)
        if time == NO_TIME:
            return BAD_TIME
        row[TIME] = time
    if _byte(data, at, stop) != _SPACE:
        return BAD_TIME
    at += 1
    for column in (HOST, APP, PROCID, MSGID):
        at = _field(data, at, stop, row, column)
        if at < 0:
            return BAD_HEADER
    row[DATA] = at
    if _byte(data, at, stop) == _DASH:
        row[DATA_STOP] = at
        at += 1
    else:
        end = _structured(data, at, stop)
        if end <= at:
            return BAD_DATA
        row[DATA_STOP] = end
        at = end
    if at < stop:
        if data[at] != _SPACE:
            return BAD_DATA
        at += 1
        if stop - at >= 3 and data[at] == 0xEF and data[at + 1] == 0xBB and data[at + 2] == 0xBF:
            at += 3  # says that the text is UTF-8
    row[MESSAGE] = at
    return WHOLE


@inlined
def _tag_end(data: Any, at: Any, stop: Any) -> Any:
    """Return where a tag ends: at the bracket, or the colon before a space or the end. -1 if there is none."""
    start = at
    while at < stop and at - start <= _MOST_TAG and _FIRST_PRINTABLE <= data[at] <= _LAST_PRINTABLE:
        if at > start and data[at] == _OPEN:
            return at
        if at > start and data[at] == _COLON and (at + 1 == stop or data[at + 1] == _SPACE):
            return at
        at += 1
    return -1


@inlined
def _read_tag(data: Any, at: Any, stop: Any, row: Any) -> Any:
    """Read `TAG[PID]: ` or `TAG: `, if that is what follows. Returns where the message begins."""
    end = _tag_end(data, at, stop)
    if end < 0:
        return at
    following = end + 1
    procid = end
    procid_stop = end
    if data[end] == _OPEN:
        procid = end + 1
        procid_stop = procid
        while procid_stop < stop and procid_stop - procid <= _MOST_TAG and data[procid_stop] != _CLOSE:
            if data[procid_stop] < _SPACE or data[procid_stop] > _LAST_PRINTABLE:
                return at
            procid_stop += 1
        if _byte(data, procid_stop, stop) != _CLOSE:
            return at
        following = procid_stop + 1
        if _byte(data, following, stop) == _COLON:
            following += 1
        if following < stop and data[following] != _SPACE:
            return at
    row[APP] = at
    row[APP_STOP] = end
    row[PROCID] = procid
    row[PROCID_STOP] = procid_stop
    return following + 1 if _byte(data, following, stop) == _SPACE else following


@inlined
def _read_bsd(data: Any, at: Any, stop: Any, row: Any, clock: Any) -> Any:
    """Read what follows the priority. Everything in it may be missing. Returns whether it has a time."""
    start = at
    _, digits = _digits(data, at, stop, _MOST_SEQUENCE)
    if digits > 0 and _byte(data, at + digits, stop) == _COLON and _byte(data, at + digits + 1, stop) == _SPACE:
        start += digits + 2  # the sequence number of a Cisco device
    if _byte(data, start, stop) == _STAR or _byte(data, start, stop) == _DOT:
        start += 1  # its clock is not set
    time, following = _bsd_time(data, start, stop, clock)
    if time == NO_TIME:
        time, following = _internet_time(data, start, stop, clock, True)
    if time == NO_TIME or (following < stop and data[following] != _SPACE and data[following] != _COLON):
        row[MESSAGE] = _read_tag(data, at, stop, row)
        return False
    row[TIME] = time
    at = following
    if _byte(data, at, stop) == _COLON:  # no host, from Cisco
        at += 1
        if _byte(data, at, stop) == _SPACE:
            at += 1
    elif at < stop:
        at += 1
        end = _word(data, at, stop)
        tag = _tag_end(data, at, stop)
        if end > at and _byte(data, end, stop) == _SPACE and (tag < 0 or tag >= end):
            row[HOST] = at
            row[HOST_STOP] = end
            at = end + 1
    row[MESSAGE] = _read_tag(data, at, stop, row)
    return True


@inlined
def _read_priority(data: Any, at: Any, stop: Any, row: Any) -> Any:
    """Read `<PRI>`. Returns where it ends, -1 if there is none, -2 if it is wrong."""
    if _byte(data, at, stop) != _LESS:
        return -1
    priority, digits = _digits(data, at + 1, stop, 3)
    if digits == 0 or priority > _MOST_PRIORITY or _byte(data, at + 1 + digits, stop) != _GREATER:
        return -2
    row[PRI] = priority
    return at + 2 + digits


@inlined
def _read_message(data: Any, row: Any, clock: Any) -> Any:
    """Fill a row of which the beginning and the end are known."""
    start = row[START]
    stop = row[STOP]
    at = _read_priority(data, start, stop, row)
    if at == -2:
        return UNPARSED, BAD_PRIORITY
    if at == -1:
        if not _read_bsd(data, start, stop, row, clock):
            return UNPARSED, NO_PRIORITY
        row[PRI] = IMPLIED_PRIORITY
        return BSD, WHOLE
    version, digits = _digits(data, at, stop, 3)
    if digits > 0 and _byte(data, at + digits, stop) == _SPACE:
        if version != 1 or digits != 1:
            return UNPARSED, BAD_VERSION
        error = _read_ietf(data, at + 2, stop, row, clock)
        return UNPARSED if error != WHOLE else IETF, error
    _read_bsd(data, at, stop, row, clock)
    return BSD, WHOLE


@inlined
def _forget_fields(row: Any) -> None:
    """Leave nothing in a row but its priority, its span and what is wrong."""
    row[TIME] = NO_TIME
    for column in range(HOST, MESSAGE):
        row[column] = row[START]
    row[MESSAGE] = row[START]


@kernel(
    data=reads("uint8"),
    spans=table("int64", SPAN_FIELDS),
    clock=reads("int64"),
    rows=table("int64", ROW_FIELDS, written=True),
)
def parse_syslog(data: Any, spans: Any, clock: Any, rows: Any) -> Any:
    """Fill a row for each span. Returns their number, or UNFIT if a span is not in the data or a row is missing."""
    if len(clock) != CLOCK_FIELDS or len(rows) < len(spans):
        return UNFIT
    for i in range(len(spans)):
        start = spans[i][SPAN_START]
        stop = spans[i][SPAN_STOP]
        if start < 0 or stop < start or stop > len(data):
            return UNFIT
        while stop > start and (data[stop - 1] == _LF or data[stop - 1] == _NUL or data[stop - 1] == _CR):
            stop -= 1
        row = rows[i]
        row[START] = start
        row[STOP] = stop
        row[PRI] = -1
        _forget_fields(row)
        kind, error = _read_message(data, row, clock)
        if kind == UNPARSED:
            _forget_fields(row)
        row[KIND] = kind
        mark = spans[i][SPAN_MARK]
        row[ERROR] = mark if mark != WHOLE else error
    return len(spans)
