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
_WINDOW = 64 << 10
_MOST_MEMBERS = 10_000


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
    size, at, members = 0, 0, 0
    while at < len(body):  # members follow one another
        members += 1
        if members > _MOST_MEMBERS:
            raise Problem(400, f"the body has more than {_MOST_MEMBERS:,} gzip members", limit="gzip_members")
        member = zlib.decompressobj(_GZIP)
        while not member.eof:
            # What a member leaves over is copied for each: from the whole body, empty members would take minutes.
            given = member.unconsumed_tail or body[at : at + _WINDOW]
            at += 0 if member.unconsumed_tail else len(given)
            if not given:
                raise Problem(400, "the body is not gzip: it ends early")
            try:
                part = member.decompress(given, _STEP)
            except zlib.error as error:
                raise Problem(400, f"the body is not gzip: {error}") from error
            size += len(part)
            if size > limit:
                raise too_large(limit)
            parts.append(part)
        at -= len(member.unused_data)
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
            raise too_large(limit)
        output = bytearray(min(4 * len(output), limit))


def _is_short(error: Exception) -> bool:
    return "too small" in str(error) or "write zero" in str(error).lower() or "whole buffer" in str(error)


def too_large(limit: int) -> Problem:
    """Return the answer for a body that is too large once it is decoded."""
    return Problem(413, f"the decoded body is larger than {limit:,} bytes", limit="decoded_bytes")
