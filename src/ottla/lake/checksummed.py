"""JSON documents that carry a checksum of themselves, so that a changed byte is noticed when they are read.

A row comes in, bytes go out, and back. The checksum is of the whole text with zeros in its place. Documents of earlier
versions have none and are taken as they are. Pure.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from typing import Any

import msgspec

_KEY = "checksum"
_BLANK = b"0" * 64


def seal(row: Mapping[str, Any]) -> bytes:
    """The row as JSON that people can read, with its checksum at the end."""
    content = msgspec.json.format(msgspec.json.encode({**row, _KEY: _BLANK.decode()}), indent=1)
    return _with(content, _BLANK, hashlib.sha256(content).hexdigest().encode())


def unseal(content: bytes, known: Collection[str]) -> dict[str, Any]:
    """The row; ValueError if it is not what was sealed. `known` are the keys of documents without a checksum."""
    row = msgspec.json.decode(content)
    if not isinstance(row, dict):
        raise ValueError("it is no JSON object")
    said = row.pop(_KEY, None)
    if said is None:
        # The key itself may be what was damaged.
        unknown = sorted(set(row) - set(known))
        if unknown:
            raise ValueError(f"it has no checksum, and {unknown[0]!r}, which means nothing here")
        return row
    if not isinstance(said, str) or len(said) != len(_BLANK) or not said.isascii():
        raise ValueError("its checksum is none")
    if hashlib.sha256(_with(content, said.encode(), _BLANK)).hexdigest() != said:
        raise ValueError("its checksum is wrong: it was changed after it was written")
    return row


def _with(content: bytes, before: bytes, after: bytes) -> bytes:
    at = content.rindex(before)
    return content[:at] + after + content[at + len(before) :]
