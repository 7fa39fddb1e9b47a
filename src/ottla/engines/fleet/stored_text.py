"""Charters, failures and reports as the text that stores keep, and the errors that all stores have in common.

Values come in and text goes out, or the other way round. Text that does not mean what it should is refused with the
name of the store; which store that is, is not known here.
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
"""Of offsets and of numbers of leases."""


def not_founded(group: str, address: str) -> StoreUnavailable:
    """For a step in a group that is not there: a store that came back empty is of use once it was founded anew."""
    return StoreUnavailable(address, f"it has no group {group!r}, which no node has begun, or it has lost its data")


def damaged(group: str, address: str, reason: str) -> StoreIncompatible:
    """For a store whose content contradicts itself."""
    return StoreIncompatible(f"group {group!r} in the store {address} cannot be understood: {reason}")


def checked(number: int, what: str) -> int:
    """A number that stores can count with."""
    if not 0 <= number <= HIGHEST:
        raise InputError(f"{what} must be between 0 and 2**63 - 1, got {number}")
    return number


def charter_text(charter: Charter) -> str:
    """For `charter_of`."""
    return json.dumps(asdict(charter))


def charter_of(text: str | bytes, group: str, address: str) -> Charter:
    """The charter in a store, if this version understands the store."""
    try:
        fields = json.loads(text)
        version = fields["version"]
        if version == VERSION:
            return Charter(**fields)
    except (ValueError, TypeError, KeyError, ConfigError) as error:
        raise damaged(group, address, f"its charter is {text!r}") from error
    raise StoreIncompatible(
        f"group {group!r} in the store {address} is of version {version}, and this Ottla understands version {VERSION}:"
        " let all nodes run the same Ottla, or choose another group"
    )


def failure_text(failure: Failure) -> str:
    """For `failure_of`, without the unit and its attempts."""
    return json.dumps(
        {"reason": failure.reason, "traceback": failure.traceback, "host": failure.host, "at": failure.at}
    )


def failure_of(unit: OffsetRange, attempts: int, text: str | bytes) -> Failure:
    """The failure that `failure_text` made text of."""
    return Failure(unit, attempts, **json.loads(text))


def report_text(report: Mapping[str, Any]) -> str:
    """What a node says of itself."""
    try:
        return json.dumps(dict(report))
    except (TypeError, ValueError) as error:
        raise InputError(f"a node's report must consist of plain values that JSON has: {error}") from error


def report_of(text: str | bytes) -> dict[str, Any]:
    """What `report_text` made text of."""
    report: dict[str, Any] = json.loads(text)
    return report
