"""ApiVersions: the messages that the fake supports, with their versions.

A version that is too new gets a response in version 0 with error 35 and the whole list (KIP-511), so that the client
can fall back; `dispatch` asks for that response.
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
    """Return the list of all keys; with an injected error the list is empty."""
    if context.version not in VERSIONS:
        return response(ErrorCode.unsupported_version, offered)
    try:
        context.check()
        _check_name(request, context.version)
    except Refused as refused:
        return response(refused.code, {})
    return response(ErrorCode.none, offered)


def _check_name(request: Any, version: int) -> None:
    if version < 3:
        return
    for text in (request.client_software_name, request.client_software_version):
        if not _SOFTWARE.fullmatch(text):
            raise Refused(ErrorCode.invalid_request, f"{text!r} is not a valid client name or version")


def response(error: ErrorCode, offered: Mapping[int, range]) -> Tree:
    """Return the response with these version ranges."""
    rows = [
        {"api_key": key, "min_version": versions.start, "max_version": versions.stop - 1}
        for key, versions in sorted(offered.items())
    ]
    return {"error_code": error, "api_keys": rows}
