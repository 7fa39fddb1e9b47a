"""Rates on the command line: `10k/s`, `1M/s`, `150TB/d` and `10Gbit/s`; parsed and shown.

A text becomes records or bytes per second, and the other way round. A text that is neither, or that may mean bits or
bytes, raises ValueError. Pure.
"""

from __future__ import annotations

import re

from ottla.cli.values.quantities import parse_size

_SECONDS = {"s": 1.0, "sec": 1.0, "second": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "hour": 3600.0}
_DAYS = {"d": 86400.0, "day": 86400.0, "w": 604800.0, "week": 604800.0}
_PERIODS = _SECONDS | _DAYS
_FACTORS = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "b": 1e9, "t": 1e12}
_RATE = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?(?:e[0-9]+)?)\s*([A-Za-z]*)\s*(?:/\s*([A-Za-z]+))?\s*")
_BITS = re.compile(r"([kmgt]?)bits?|([kmgt]?)bps", re.IGNORECASE)
_AMBIGUOUS = re.compile(r"[kKmMgGtT]b")
_SHOWN = (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3))
RECORDS = "use 500/s, 10k/s, 1M/s, 5G/d, or a number of records per second"
BYTES = "use 50MB/s, 1.5GB/s, 150TB/d, 10Gbit/s, or a number of bytes per second"


def parse_record_rate(text: str) -> float:
    """Return the records per second of `10k/s`, `5G/d` or a plain number. Raises ValueError if it is not a rate."""
    match = _RATE.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a rate of records: {RECORDS}")
    unit = match[2].lower()
    if unit.endswith(("b", "bit", "ib")) and len(unit) > 1:
        raise ValueError(f"{text!r} are bytes or bits, not records: {RECORDS}")
    if unit not in _FACTORS:
        raise ValueError(f"{text!r}: {match[2]!r} is not a number of records: {RECORDS}")
    return float(match[1]) * _FACTORS[unit] / _period(text, match[3], RECORDS)


def parse_byte_rate(text: str) -> float:
    """Return the bytes per second of `150TB/d`, `10Gbit/s` or a plain number. Raises ValueError if it is not a rate."""
    match = _RATE.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a rate of bytes: {BYTES}")
    number, unit = match[1], match[2]
    bits = _BITS.fullmatch(unit)
    if bits is not None:
        factor = _FACTORS[(bits[1] or bits[2] or "").lower()]
        return float(number) * factor / 8 / _period(text, match[3], BYTES)
    if _AMBIGUOUS.fullmatch(unit):
        raise ValueError(f"{text!r} may be bits or bytes: write {number}{unit[0]}bit/s or {number}{unit[0]}B/s")
    if unit and match[3] is None:
        raise ValueError(f"{text!r} is a size, not a rate: {BYTES}")
    try:
        size = parse_size("1" + unit)
    except ValueError as error:
        raise ValueError(f"{text!r} is not a rate of bytes: {BYTES}") from error
    return float(number) * size / _period(text, match[3], BYTES)


def _period(text: str, period: str | None, accepted: str) -> float:
    if period is None:
        return 1.0
    if period.lower() not in _PERIODS:
        raise ValueError(f"{text!r}: {period!r} is not a unit of time: {accepted}")
    return _PERIODS[period.lower()]


def is_mean(text: str) -> bool:
    """Return whether a rate is given for a day or a week, and so is the mean of quiet and busy hours."""
    match = _RATE.fullmatch(text)
    return match is not None and (match[3] or "").lower() in _DAYS


def show_number(value: float, *, digits: int = 3) -> str:
    """Return `1.74G`, `12.5k` or `350`: rounded to three digits."""
    for name, factor in _SHOWN:
        if abs(value) >= factor * (1 - 0.5 * 10**-digits):
            return f"{_rounded(value / factor, digits)}{name}"
    return _rounded(value, digits)


def show_byte_rate(value: float) -> str:
    """Return `474MB/s`: rounded to three digits."""
    shown = show_number(value)
    return f"{shown}B/s"


def _rounded(value: float, digits: int) -> str:
    if abs(value) >= 100:
        return f"{value:.0f}"
    text = f"{value:.{digits}g}"
    return text if "e" not in text else f"{value:.{digits + 2}f}".rstrip("0")
