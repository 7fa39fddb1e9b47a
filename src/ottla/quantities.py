"""Durations and sizes as people write them: `4d`, `1h30m`, `50GB`, `1.5MiB`; parsed and shown.

A text becomes seconds or bytes, and the other way round. A text that is neither raises ValueError. Pure.
"""

from __future__ import annotations

import re

_SECONDS = {"w": 604800.0, "d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
_SHORT = {
    **dict.fromkeys(("week", "weeks"), "w"),
    **dict.fromkeys(("day", "days"), "d"),
    **dict.fromkeys(("hour", "hours"), "h"),
    **dict.fromkeys(("min", "mins", "minute", "minutes"), "m"),
    **dict.fromkeys(("sec", "secs", "second", "seconds"), "s"),
}
_BYTES: dict[str, int] = {
    **dict.fromkeys(("", "b"), 1),
    **{f"{letter}{suffix}": 1000**power for power, letter in enumerate("kmgtp", 1) for suffix in ("", "b")},
    **{f"{letter}{suffix}": 1024**power for power, letter in enumerate("kmgtp", 1) for suffix in ("i", "ib")},
}
_NUMBER = r"[0-9]+(?:\.[0-9]+)?"
_PLAIN_NUMBER = re.compile(_NUMBER, re.ASCII)
_PART = re.compile(rf"\s*({_NUMBER})\s*([A-Za-z]+)")
_SIZE = re.compile(rf"({_NUMBER})\s*([A-Za-z]*)")
_SHOWN_BYTES = (("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("kB", 10**3))
_BINARY_BYTES = (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10))

DURATIONS = "use 90s, 15m, 36h, 4d, 2w, 250ms, 1h30m, or a number of seconds"
SIZES = "use 512kB, 50GB (powers of 1000), 512KiB, 50GiB (powers of 1024), or a number of bytes"


def parse_duration(text: str) -> float:
    """Return the seconds of `1h30m`, `4d`, `250ms` or a plain number. Raises ValueError if it is not a duration."""
    stripped = text.strip()
    if _PLAIN_NUMBER.fullmatch(stripped):
        return float(stripped)
    parts = _PART.findall(stripped)
    if not parts or _PART.sub("", stripped).strip():
        raise ValueError(f"{text!r} is not a duration: {DURATIONS}")
    units = [_SHORT.get(unit.lower(), unit.lower()) for _, unit in parts]
    for unit, (_, written) in zip(units, parts, strict=True):
        if unit not in _SECONDS:
            raise ValueError(f"{text!r}: {written!r} is not a unit of time: {DURATIONS}")
    return sum(float(number) * _SECONDS[unit] for unit, (number, _) in zip(units, parts, strict=True))


def parse_size(text: str) -> int:
    """Return the bytes of `50GB`, `1.5MiB` or a plain number. Raises ValueError if it is not a size."""
    match = _SIZE.fullmatch(text.strip())
    factor = _BYTES.get(match[2].lower()) if match else None
    if match is None or factor is None:
        raise ValueError(f"{text!r} is not a size: {SIZES}")
    number: str = match[1]
    return round(float(number) * factor) if "." in number else int(number) * factor


def show_duration(seconds: float) -> str:
    """Return `4d`, `1h30m` or `250ms`: exact to the millisecond."""
    millis = round(seconds * 1000)
    if millis == 0:
        return "0s"
    sign, rest = ("-", -millis) if millis < 0 else ("", millis)
    parts = []
    for unit in ("d", "h", "m", "s", "ms"):
        count, rest = divmod(rest, round(_SECONDS[unit] * 1000))
        if count:
            parts.append(f"{count}{unit}")
    return sign + "".join(parts)


def show_size(size_bytes: int) -> str:
    """Return `50GB`, `1.4MB` or `1MiB`: exact where that is short, else rounded to two or three digits."""
    for name, factor in (*_BINARY_BYTES, *_SHOWN_BYTES):
        if size_bytes >= factor and size_bytes % factor == 0 and size_bytes // factor < 10000:
            return f"{size_bytes // factor}{name}"
    for name, factor in _SHOWN_BYTES:
        if size_bytes >= factor:
            value = size_bytes / factor
            return f"{value:.1f}{name}" if value < 100 else f"{value:.0f}{name}"
    return f"{size_bytes}B"
