"""ApiVersions: which messages the fake speaks, in which versions.

A version that is too new is answered in the form of version 0 with error 35 and the whole list (KIP-511), so
that the client can come down; `dispatch` asks for that answer.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ottla.errors import ErrorCode
from ottla.testing.fake.context import Context
from ottla.testing.fake.log import Refused
from ottla.testing.fake.messages import Tree

KEY = 18
VERSIONS = range(5)

_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9.-]*[a-zA-Z0-9])?")  # KIP-511


def handle(request: Any, context: Context, offered: Mapping[int, range]) -> Tree:
    """The list of all keys; there is no list beside an injected error."""
    if context.version not in VERSIONS:
        return tree(ErrorCode.unsupported_version, offered)
    try:
        context.check()
        _check_name(request, context.version)
    except Refused as refused:
        return tree(refused.code, {})
    return tree(ErrorCode.none, offered)


def _check_name(request: Any, version: int) -> None:
    if version < 3:
        return
    for text in (request.client_software_name, request.client_software_version):
        if not _SOFTWARE.fullmatch(text):
            raise Refused(ErrorCode.invalid_request, f"{text!r} is no name or version of a client")


def tree(error: ErrorCode, offered: Mapping[int, range]) -> Tree:
    """The answer with these ranges."""
    rows = [
        {"api_key": key, "min_version": versions.start, "max_version": versions.stop - 1}
        for key, versions in sorted(offered.items())
    ]
    return {"error_code": error, "api_keys": rows}
