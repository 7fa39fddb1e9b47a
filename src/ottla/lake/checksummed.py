"""JSON documents with a checksum inside, so that a changed byte is detected when they are read.

A row comes in and bytes go out, and back. The checksum is the SHA-256 of the whole text with zeros in place of the
checksum. Documents of earlier versions have none and are accepted without. Pure.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from typing import Any

import msgspec

_KEY = "checksum"
_BLANK = b"0" * 64


def seal(row: Mapping[str, Any]) -> bytes:
    """Return the row as readable JSON, with its checksum at the end."""
    content = msgspec.json.format(msgspec.json.encode({**row, _KEY: _BLANK.decode()}), indent=1)
    return _replaced(content, _BLANK, hashlib.sha256(content).hexdigest().encode())


def unseal(content: bytes, known: Collection[str]) -> dict[str, Any]:
    """Return the row. Raises ValueError if the content was changed after it was sealed.

    `known` are the keys that a document without a checksum may have.
    """
    row = msgspec.json.decode(content)
    if not isinstance(row, dict):
        raise ValueError("it is no JSON object")
    checksum = row.pop(_KEY, None)
    if checksum is None:
        # The damaged byte may be in the key "checksum" itself; then the document has an unknown key.
        unknown = sorted(set(row) - set(known))
        if unknown:
            raise ValueError(f"it has no checksum, and an unknown key {unknown[0]!r}")
        return row
    if not isinstance(checksum, str) or len(checksum) != len(_BLANK) or not checksum.isascii():
        raise ValueError("its checksum is malformed")
    if hashlib.sha256(_replaced(content, checksum.encode(), _BLANK)).hexdigest() != checksum:
        raise ValueError("its checksum is wrong: it was changed after it was written")
    return row


def _replaced(content: bytes, before: bytes, after: bytes) -> bytes:
    """Replace the last occurrence."""
    start = content.rindex(before)
    return content[:start] + after + content[start + len(before) :]
