"""Text from outside, made fit to be read by people: what would steer a terminal or forge a line is written out.

Names of topics, groups, clients and hosts, error texts of brokers and the like are whatever the other side says. They
go through `printable` on their way into an error, a log or a terminal, and stay as they are everywhere else. What may
hold a password goes through `redacted`.
"""

from __future__ import annotations

import re

CONTROL = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)
"""What `printable` writes out: control characters (C0, DEL, C1), marks that change the direction of text, separators of
lines and paragraphs, what has no width (soft hyphen, zero width space, tags), and halves of surrogate pairs. The
joiners that scripts and emoji need, U+200C and U+200D, stay."""

CONTROL_BYTES = re.compile(
    rb"\x7f|\xc2[\x80-\x9f\xad]|\xd8\x9c|\xe1\xa0\x8e|\xe2\x80[\x8b\x8e\x8f\xa8-\xae]|\xe2\x81[\xa0-\xaf]|\xef\xbb\xbf"
    rb"|\xef\xbf[\xb9-\xbb]|\xf3\xa0[\x80\x81][\x80-\xbf]"
)
"""The same in UTF-8, from DEL on."""


def printable(text: str, *, keep: str = "") -> str:
    """The text with such characters as `\\x1b`, `\\n`, `\\u202e`; those in `keep` stay: `"\\n"` for several lines."""
    if text.isascii() and text.isprintable():
        return text
    return CONTROL.sub(lambda found: found[0] if found[0] in keep else _written(found[0]), text)


def escaped_in_json(text: str) -> str:
    """JSON in one line that means the same, with such characters as `\\u009b`: JSON itself lets most of them stand."""
    import json

    return CONTROL.sub(lambda found: "\\u007f" if found[0] == "\x7f" else json.dumps(found[0])[1:-1], text)


_USER_INFO = re.compile(r"(?P<before>^|//|[\s,'\"(])[^\s,'\"/@]*@")
_SECRET = re.compile(
    r"(?i)(?P<name>[\w.-]*(?:password|passwd|secret|token|api[_-]?key|credential)[\w.-]*)=[^&\s,;'\"]+"
)


def redacted(text: str) -> str:
    """Without what stands before an @ in addresses, and without the values of settings that sound like secrets."""
    return _SECRET.sub(r"\g<name>=***", _USER_INFO.sub(r"\g<before>***@", text))


def _written(character: str) -> str:
    return character.encode("unicode_escape").decode()
