"""Writes the head of an answer together with what follows: two writes cost a system call and a packet more than one.

uvicorn's protocol writes into it as into the transport. What is held goes out with the next write, at the latest when
the event loop has finished what is ready now, so that the head of a stream does not wait for its first piece.
"""

from __future__ import annotations

import asyncio
from typing import Any

_HEAD = b"HTTP/1.1 "
_MOST_BYTES = 64 << 10
"""Larger bodies are written on their own: joining would copy them."""


class OneWrite(asyncio.Transport):
    """A transport in front of another one."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._transport = transport
        self._loop = loop
        self._head = b""

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        """Write, or hold it if it is a head."""
        head, self._head = self._head, b""
        if head:
            if len(data) <= _MOST_BYTES:
                self._transport.write(head + data)
                return
            self._transport.write(head)
        elif isinstance(data, bytes) and data.startswith(_HEAD):
            self._head = data
            self._loop.call_soon(self._flush)
            return
        self._transport.write(data)

    def _flush(self) -> None:
        head, self._head = self._head, b""
        if head:
            self._transport.write(head)

    def close(self) -> None:
        """Write what is held, then close."""
        self._flush()
        self._transport.close()

    def abort(self) -> None:
        """Close at once, without what is held."""
        self._head = b""
        self._transport.abort()

    def is_closing(self) -> bool:
        """Whether it is closed, or will be."""
        return self._transport.is_closing()

    def pause_reading(self) -> None:
        """Take nothing from the client for now."""
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Take from the client again."""
        self._transport.resume_reading()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return what is known of the connection."""
        return self._transport.get_extra_info(name, default)
