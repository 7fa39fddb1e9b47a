"""JSON for programs, safe to print on a terminal."""

from __future__ import annotations

import json

from ottla.text import escaped_in_json


def json_text(value: object, *, indent: int | None = None) -> str:
    """Return JSON in ASCII, without control characters."""
    return escaped_in_json(json.dumps(value)) if indent is None else _indented(value, indent)


def _indented(value: object, indent: int) -> str:
    return "\n".join(map(escaped_in_json, json.dumps(value, indent=indent).split("\n")))
