#!/usr/bin/env python3
"""Sends one message to the gateway's socket and forgets it. Nothing but Python is needed.

    send.py /run/ottla/gateway.sock clicks 'a value'
    send.py /run/ottla/gateway.sock clicks 'a value' --key 'a key' --header trace=1

To use it in a program, take `message` and keep the socket open.
"""

from __future__ import annotations

import argparse
import socket
import struct
import sys
import time
from collections.abc import Sequence

ANY_PARTITION, WITH_HEADERS, HAS_HEADERS = 256, 258, 1


def message(
    topic: bytes, value: bytes | None, *, key: bytes | None = None, headers: Sequence[tuple[bytes, bytes | None]] = ()
) -> bytes:
    """Return the bytes of a message: in dory's format, or in ours if it has what that cannot say."""
    body = struct.pack(">h", len(topic)) + topic + struct.pack(">q", time.time_ns() // 1_000_000)
    if value is not None and key != b"" and not headers:
        return _whole(ANY_PARTITION, 0, body + _sized(key or b"") + _sized(value))
    if headers:
        body += struct.pack(">h", len(headers))
        body += b"".join(struct.pack(">h", len(name)) + name + _sized(content) for name, content in headers)
    return _whole(WITH_HEADERS, HAS_HEADERS if headers else 0, body + _sized(key) + _sized(value))


def _sized(data: bytes | None) -> bytes:
    return struct.pack(">i", -1) if data is None else struct.pack(">i", len(data)) + data


def _whole(kind: int, flags: int, body: bytes) -> bytes:
    return struct.pack(">ihhh", 10 + len(body), kind, 0, flags) + body


def main() -> int:
    """Send what the command line says."""
    parser = argparse.ArgumentParser(description="Send one message to the gateway's socket.")
    parser.add_argument("socket", help="the path of a unix datagram socket")
    parser.add_argument("topic")
    parser.add_argument("value")
    parser.add_argument("--key")
    parser.add_argument("--header", action="append", default=[], metavar="NAME=VALUE")
    given = parser.parse_args()
    headers = [(name.encode(), content.encode()) for name, _, content in (h.partition("=") for h in given.header)]
    key = None if given.key is None else given.key.encode()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        try:
            sender.connect(given.socket)
            sender.send(message(given.topic.encode(), given.value.encode(), key=key, headers=headers))
        except OSError as error:
            print(f"error: {given.socket}: {error.strerror}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
