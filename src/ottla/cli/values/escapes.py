"""Bytes as people write them on a command line: `\\t`, `\\n`, `\\xNN` and the like; `base64:` for any others.

Text comes in as the shell gave it, bytes go out; what is malformed is a ValueError that says what is accepted. Pure.
"""

from __future__ import annotations

import os
import re
from base64 import b64decode
from binascii import Error as NotBase64

_ESCAPE = re.compile(rb"\\(?:x([0-9A-Fa-f]{2})|([tnr0\\]))")
_PLAIN = {b"t": b"\t", b"n": b"\n", b"r": b"\r", b"0": b"\0", b"\\": b"\\"}


def unescaped(text: str) -> bytes:
    """Return the bytes, with `\\t`, `\\n`, `\\r`, `\\0`, `\\\\` and `\\xNN` replaced."""
    return _ESCAPE.sub(lambda m: bytes([int(m[1], 16)]) if m[1] else _PLAIN[m[2]], os.fsencode(text))


def literal(text: str) -> bytes:
    """Return the bytes of `base64:...`; other text, and text after `text:`, stands for itself, with escapes."""
    if text.startswith("base64:"):
        try:
            return b64decode(text.removeprefix("base64:"), validate=True)
        except NotBase64 as error:
            raise ValueError(f"{text!r} is not base64 ({error}); write text:{text} for the text itself") from error
    return unescaped(text.removeprefix("text:"))
