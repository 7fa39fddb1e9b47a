"""Charters, failures and reports as the text that stores keep, and the errors that all stores share.

Values come in and text goes out, and the other way round. Invalid text raises `StoreIncompatible` with the address of
the store. This module knows no particular store.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from ottla.engines.fleet.units import VERSION, Charter, Failure
from ottla.errors import ConfigError, InputError, StoreIncompatible, StoreUnavailable
from ottla.model import OffsetRange

HIGHEST = 2**63 - 1
"""The highest offset and the highest lease number."""


def not_founded(group: str, address: str) -> StoreUnavailable:
    """The error for a step in a group that does not exist. It passes once a node has called `found` again."""
    return StoreUnavailable(address, f"it has no group {group!r}: no node has started it, or the store lost its data")


def damaged(group: str, address: str, reason: str) -> StoreIncompatible:
    """The error for a store with invalid content."""
    return StoreIncompatible(f"group {group!r} in the store {address} is damaged: {reason}")


def checked(number: int, what: str) -> int:
    """Return a number that fits into all stores. Raises `InputError` for any other."""
    if not 0 <= number <= HIGHEST:
        raise InputError(f"{what} must be between 0 and 2**63 - 1, got {number}")
    return number


def charter_text(charter: Charter) -> str:
    """Encode a charter."""
    return json.dumps(asdict(charter))


def charter_of(text: str | bytes, group: str, address: str) -> Charter:
    """Decode a charter. Raises `StoreIncompatible` if it is damaged or has another version."""
    try:
        fields = json.loads(text)
        version = fields["version"]
        if version == VERSION:
            return Charter(**fields)
    except (ValueError, TypeError, KeyError, ConfigError) as error:
        raise damaged(group, address, f"its charter is {text!r}") from error
    raise StoreIncompatible(
        f"group {group!r} in the store {address} has version {version}, and this Ottla supports version {VERSION}:"
        " run the same Ottla on all nodes, or choose another group"
    )


def failure_text(failure: Failure) -> str:
    """Encode a failure, without the unit and its attempts."""
    return json.dumps(
        {"reason": failure.reason, "traceback": failure.traceback, "host": failure.host, "at": failure.at}
    )


def failure_of(unit: OffsetRange, attempts: int, text: str | bytes) -> Failure:
    """Decode a failure. Raises `ValueError` or `TypeError` if the text is damaged."""
    return Failure(unit, attempts, **json.loads(text))


def report_text(report: Mapping[str, Any]) -> str:
    """Encode a node's report about itself. Raises `InputError` if it is not plain JSON values."""
    try:
        return json.dumps(dict(report))
    except (TypeError, ValueError) as error:
        raise InputError(f"a node's report must contain only JSON values: {error}") from error


def report_of(text: str | bytes) -> dict[str, Any]:
    """Decode a node's report. Raises `ValueError` if the text is damaged."""
    report: dict[str, Any] = json.loads(text)
    return report
