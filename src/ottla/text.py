"""Makes text from outside safe to show: escapes what would control a terminal or forge a line.

Names of topics, groups, clients and hosts, and error texts of brokers can contain anything. They go through `printable`
on the way into an error, a log or a terminal, and must stay unchanged everywhere else. Text that may contain a password
goes through `redacted`.
"""

from __future__ import annotations

import re

CONTROL = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)
"""What `printable` escapes: control characters (C0, DEL, C1), marks that change the direction of text, line and
paragraph separators, characters without width (soft hyphen, zero width space, tags), and halves of surrogate pairs. The
joiners that scripts and emoji need, U+200C and U+200D, stay."""

CONTROL_BYTES = re.compile(
    rb"\x7f|\xc2[\x80-\x9f\xad]|\xd8\x9c|\xe1\xa0\x8e|\xe2\x80[\x8b\x8e\x8f\xa8-\xae]|\xe2\x81[\xa0-\xaf]|\xef\xbb\xbf"
    rb"|\xef\xbf[\xb9-\xbb]|\xf3\xa0[\x80\x81][\x80-\xbf]"
)
"""The same in UTF-8, from DEL on."""


def printable(text: str, *, keep: str = "") -> str:
    """Escape control characters as `\\x1b`, `\\n`, `\\u202e`. Those in `keep` stay: `"\\n"` for several lines."""
    if text.isascii() and text.isprintable():
        return text
    return CONTROL.sub(lambda match: match[0] if match[0] in keep else _written(match[0]), text)


def escaped_in_json(text: str) -> str:
    """Escape control characters in a line of JSON as `\\u009b`. The meaning stays; JSON itself allows most of them."""
    import json

    return CONTROL.sub(lambda match: "\\u007f" if match[0] == "\x7f" else json.dumps(match[0])[1:-1], text)


_USER_INFO = re.compile(r"(?P<before>^|//|[\s,'\"(])[^\s,'\"/@]*@")
_SECRET = re.compile(
    r"(?i)(?P<name>[\w.-]*(?:password|passwd|secret|token|api[_-]?key|credential)[\w.-]*)=[^&\s,;'\"]+"
)


def redacted(text: str) -> str:
    """Remove user info from addresses, and the values of settings whose names sound like secrets."""
    # Both patterns err on the side of hiding too much.
    return _SECRET.sub(r"\g<name>=***", _USER_INFO.sub(r"\g<before>***@", text))


def _written(character: str) -> str:
    return character.encode("unicode_escape").decode()
