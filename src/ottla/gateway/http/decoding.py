"""Decodes a body with a Content-Encoding within a limit, so that a small body cannot become a large one. Pure."""

from __future__ import annotations

import zlib

import cramjam

from ottla.gateway.http.limits import Limits
from ottla.gateway.http.problems import Problem

ENCODINGS = ("gzip", "zstd", "identity")
_GZIP = 31
"""Window bits of zlib for gzip's own header and checksum."""
_STEP = 1 << 20


def decoded(body: bytes, encoding: str, *, limits: Limits) -> bytes:
    """Return the body. Raises `Problem` for one that is damaged, too large, or encoded in another way."""
    match encoding.strip().lower():
        case "" | "identity":
            return body
        case "gzip" | "x-gzip":
            return _gunzipped(body, limits.decoded_bytes)
        case "zstd":
            return _unzstd(body, limits.decoded_bytes)
    raise Problem(415, f"the content encoding {encoding!r} is not supported; accepted are {', '.join(ENCODINGS)}")


def _gunzipped(body: bytes, limit: int) -> bytes:
    parts: list[bytes] = []
    size, rest = 0, body
    while rest:  # members follow one another
        member = zlib.decompressobj(_GZIP)
        while not member.eof:
            try:
                part = member.decompress(rest, _STEP)
            except zlib.error as error:
                raise Problem(400, f"the body is not gzip: {error}") from error
            rest = member.unconsumed_tail
            size += len(part)
            if size > limit:
                raise _too_large(limit)
            parts.append(part)
            if not part and not rest and not member.eof:
                raise Problem(400, "the body is not gzip: it ends early")
        rest = member.unused_data
    return b"".join(parts)


def _unzstd(body: bytes, limit: int) -> bytes:
    output = bytearray(min(max(4 * len(body), 1 << 16), limit))
    while True:
        try:
            return bytes(output[: cramjam.zstd.decompress_into(body, output)])
        except cramjam.DecompressionError as error:
            if not _is_short(error):
                raise Problem(400, "the body is not zstd") from error
        if len(output) >= limit:
            raise _too_large(limit)
        output = bytearray(min(4 * len(output), limit))


def _is_short(error: Exception) -> bool:
    return "too small" in str(error) or "write zero" in str(error).lower() or "whole buffer" in str(error)


def _too_large(limit: int) -> Problem:
    return Problem(413, f"the decoded body is larger than {limit:,} bytes", limit="decoded_bytes")
